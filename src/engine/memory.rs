//! How much memory there is, and what a run or a datum may take of it.

use crate::command::RunKind;
use crate::error::{Error, Result};
use crate::model::config::DecoderConfig;
use crate::model::decoder::tape_values;
use crate::model::params::{Param, Site};

/// Assumed where the system does not say.
const UNKNOWN: u64 = 8 << 30;
/// Kept free for everything that is not counted.
const RESERVE: u64 = 512 << 20;

/// Bytes that can be had without swapping.
pub fn available() -> u64 {
    std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(parse_available).unwrap_or(UNKNOWN)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Values that a run of this kind trains.
pub fn trained_values(config: &DecoderConfig, kind: RunKind) -> usize {
    match kind {
        RunKind::Full => Param::all(config).into_iter().map(|p| p.num_elements(config)).sum(),
        RunKind::Lora(c) => {
            let sites = Site::chosen(config, c.train_attn, c.train_mlp, c.train_unembed).into_iter();
            sites.map(|s| s.sizes(config)).map(|(inputs, outputs)| c.rank * (inputs + outputs)).sum()
        }
    }
}

/// Refuses a run whose weights, gradient and two moments would not fit.
pub fn admit_run(values: usize, available: u64) -> Result<()> {
    let needed = 4 * 4 * values as u64;
    if needed + RESERVE <= available {
        return Ok(());
    }
    Err(Error::user(format!(
        "a run that trains {values} values needs {} for weights, gradient and optimiser state; {} are free on the server",
        mib(needed),
        mib(available.saturating_sub(RESERVE))
    )))
}

/// Tokens of the longest datum whose training pass fits into `values` of activations: each layer's input is always
/// kept, and one layer's inner activations at a time.
pub fn longest_datum(config: &DecoderConfig, values: usize) -> usize {
    let per_token = (config.num_layers + 4) * config.hidden_size + 2 * tape_values(config);
    values / per_token
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_available_figure() {
        assert_eq!(parse_available("MemTotal: 10 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_available("MemTotal: 10 kB\n"), None);
    }
}
