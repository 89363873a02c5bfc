//! How much memory there is, and what a run or a datum may take of it.

use crate::command::RunKind;
use crate::config::limits::Limits;
use crate::error::{Error, Result};
use crate::model::config::DecoderConfig;
use crate::model::decoder::tape_values;
use crate::model::params::{Param, Site};

/// Assumed where the system does not say.
const UNKNOWN: u64 = 8 << 30;
/// Bytes a trained value comes to take: itself, the run's gradient and a request's, two moments, and the copy that a
/// snapshot leaves behind.
const BYTES_PER_VALUE: u64 = 24;

/// What the engine may take, decided once the models are loaded.
pub struct Budgets {
    /// Activations of a training pass, in bytes.
    pub activations: u64,
    /// Logits of a training pass.
    pub logits: u64,
    /// Keys and values of running sequences.
    pub kv_cache: u64,
    /// All runs together.
    pub runs: u64,
}

impl Budgets {
    /// Shares of `free`, where the limits do not say otherwise.
    pub fn new(limits: &Limits, free: u64) -> Self {
        let activations = limits.activation_bytes.unwrap_or(free / 3);
        let logits = activations / 4;
        let kv_cache = limits.kv_cache_bytes.unwrap_or(free / 6);
        Self { activations, logits, kv_cache, runs: free.saturating_sub(activations + logits + kv_cache) }
    }
}

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

/// Bytes a run of so many trained values comes to take.
pub fn run_bytes(values: usize) -> u64 {
    BYTES_PER_VALUE * values as u64
}

/// Refuses a run for which memory would not be left beside those that are loaded.
pub fn admit_run(values: usize, admitted: u64, budget: u64) -> Result<()> {
    let (needed, left) = (run_bytes(values), budget.saturating_sub(admitted));
    if needed <= left {
        return Ok(());
    }
    Err(Error::user(format!(
        "a run that trains {values} values needs {} for weights, gradients and optimiser state; {} are left of the {} \
         that this server has for runs",
        mib(needed),
        mib(left),
        mib(budget)
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
