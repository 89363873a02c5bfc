//! Model directories: configuration, architecture, tokenizer, and whether all weights are there.

use std::path::Path;
use std::time::{Duration, Instant};

use super::line::Line;
use super::patience::within;
use crate::config::device::Dtype;
use crate::config::env::Env;
use crate::config::hub::Hub;
use crate::config::models::{self, ModelArg, ModelSource};
use crate::engine::memory;
use crate::error::Result;
use crate::hub;
use crate::model::config::DecoderConfig;
use crate::model::import::Import;
use crate::model::params::Param;
use crate::tokenizer::Tokenizer;

const AREA: &str = "model";

pub fn check(flags: Vec<String>, env: &Env, dtype: Dtype, limit: Duration) -> Vec<Line> {
    if flags.is_empty() && env.get("TINDERBOX_MODEL").is_none() {
        return vec![Line::skip(AREA, "files", "none given: --model or TINDERBOX_MODEL says what would be served")];
    }
    let advice = "give --model [NAME=]DIR with a Hugging Face model directory";
    let models = match models::from_args(flags, env) {
        Ok(models) => models,
        Err(e) => return vec![Line::fail(AREA, "files", e.message, advice)],
    };
    let bytes_per_value = match dtype {
        Dtype::F32 => 4,
        Dtype::Bf16 => 2,
    };
    let mut needed = 0;
    let mut lines: Vec<Line> = models
        .into_iter()
        .map(|model| {
            let (start, name, hub) = (Instant::now(), model.name.clone(), Hub::from_env(env));
            let line = match within(limit, move || look(&model, &hub)) {
                Ok(Ok(found)) => {
                    needed += found.values * bytes_per_value;
                    Line::pass(AREA, name, found.says)
                }
                Ok(Err(e)) => Line::fail(
                    AREA,
                    name,
                    e.message,
                    "fetch the model's files anew, all of them; or take one that is supported",
                ),
                Err(why) => Line::fail(AREA, name, why, "look at the disk that the model lies on"),
            };
            line.since(start)
        })
        .collect();
    lines.extend((needed > 0).then(|| fits(needed)));
    lines
}

struct Found {
    says: String,
    values: u64,
}

/// Nothing is downloaded.
fn look(model: &ModelArg, hub: &Hub) -> Result<Found> {
    match &model.source {
        ModelSource::Dir(dir) => in_dir(dir),
        ModelSource::Hub(id) => in_dir(&hub::resolve(id, &hub.cache_dir, true)?),
    }
}

fn in_dir(dir: &Path) -> Result<Found> {
    let config = DecoderConfig::from_dir(dir)?;
    Import::open(dir, &config)?;
    let tokenizer = Tokenizer::load(dir)?;
    let values: u64 = Param::all(&config).into_iter().map(|p| p.num_elements(&config) as u64).sum();
    let says = format!(
        "{}, {:.1} M values, {} tokens of context, {} words in the tokenizer",
        config.model_type,
        values as f64 / 1e6,
        config.max_context_length,
        tokenizer.vocab_size()
    );
    Ok(Found { says, values })
}

fn fits(needed: u64) -> Line {
    let available = memory::available();
    let found = format!("the base weights take {} MiB, {} MiB are available", needed >> 20, available >> 20);
    match needed < available {
        true => Line::pass("memory", "models fit", found),
        false => {
            Line::fail("memory", "models fit", found, "give --dtype bf16, a smaller model, or take a larger machine")
        }
    }
}
