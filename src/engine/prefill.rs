//! Running prompts: their caches, what was asked about them, and the logits behind them.

use std::sync::Arc;

use crate::command::SampleOutput;
use crate::engine::models::Models;
use crate::engine::prompt;
use crate::engine::sources::Source;
use crate::engine::turns::Waiting;
use crate::error::Result;
use crate::kernels::{Mat, Pass, download};
use crate::model::batch::{Batch, Group};
use crate::model::config::DecoderConfig;
use crate::model::kv_cache::Stretch;
use crate::model::layer::Context;

/// Values of keys and values that `tokens` take.
pub fn kv_values(c: &DecoderConfig, tokens: usize) -> usize {
    2 * c.num_layers * c.kv_size() * tokens
}

/// The surroundings of a sampling pass.
pub fn context<'a>(models: &Models, source: &'a Source, batch: &'a Batch<'a>) -> Context<'a> {
    Context { kernels: models.kernels, weights: source.weights(), rope: &source.base.rope, pass: Pass::Sample, batch }
}

/// A batch of one row per source, (token, position) each; equal neighbours form a group.
pub fn rows_of(sources: &[Arc<Source>], rows: impl Iterator<Item = (u32, u32)>) -> Batch<'_> {
    let (tokens, positions) = rows.unzip();
    let mut groups: Vec<Group> = Vec::new();
    for (i, source) in sources.iter().enumerate() {
        match groups.last_mut() {
            Some(g) if Arc::ptr_eq(source, &sources[i - 1]) => g.rows.end = i + 1,
            _ => groups.push(Group { rows: i..i + 1, adapter: source.adapter(), seqs: Vec::new() }),
        }
    }
    Batch { tokens, positions, groups }
}

/// A request whose prompt is run, and its weights.
pub struct Prompt<'a> {
    pub waiting: &'a Waiting,
    pub source: &'a Arc<Source>,
}

/// What running a prompt gave.
pub struct PromptDone {
    /// Answers about the prompt itself.
    pub output: SampleOutput,
    pub stretch: Stretch,
    /// Logits behind the prompt's last token.
    pub logits: Vec<f32>,
}

/// Runs the prompts of one lane: their caches, what was asked about them, and the logits behind each.
pub fn run_prompts(models: &Models, taken: &[Prompt]) -> Vec<Result<PromptDone>> {
    let shares = taken.iter().map(|p| (p.waiting.origin.promise.clone(), p.waiting.request.prompt.len())).collect();
    models.meter.samples(shares, || run(models, taken))
}

fn run(models: &Models, taken: &[Prompt]) -> Vec<Result<PromptDone>> {
    let mut groups: Vec<(Option<_>, Vec<&[u32]>)> = Vec::new();
    for (i, p) in taken.iter().enumerate() {
        let same = i > 0 && Arc::ptr_eq(p.source, taken[i - 1].source);
        if !same {
            groups.push((p.source.adapter(), Vec::new()));
        }
        groups.last_mut().expect("just pushed").1.push(&p.waiting.request.prompt);
    }
    let batch = Batch::pack(groups);
    let whole = context(models, taken[0].source, &batch);
    let (h, stretches) = whole.prefill(&models.device);
    let seqs = batch.seqs();
    let last: Vec<_> = seqs.iter().map(|s| h.clone().narrow(0, s.end - 1, 1)).collect();
    let sources: Vec<Arc<Source>> = taken.iter().map(|p| p.source.clone()).collect();
    let last_batch = rows_of(&sources, seqs.iter().map(|s| (batch.tokens[s.end - 1], (s.len() - 1) as u32)));
    let logits = download(context(models, taken[0].source, &last_batch).logits(&Mat::cat(last, 0)));
    let vocab = taken[0].source.base.config().vocab_size;
    let mut done = Vec::with_capacity(taken.len());
    for (((p, rows), stretch), logits) in taken.iter().zip(seqs).zip(stretches).zip(logits.chunks(vocab)) {
        let output = prompt::outputs(&whole, &p.waiting.request, p.source, &h, rows);
        done.push(output.map(|output| PromptDone { output, stretch, logits: logits.to_vec() }));
    }
    done
}
