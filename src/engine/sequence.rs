//! A sequence that is being generated, and how its next token is drawn.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::command::{SampleRequest, Sequence, StopReason, TokenEvent, TopK};
use crate::error::{Error, Result};
use crate::model::kv_cache::KvCache;
use crate::sampling::{self, StopState};

/// A sequence that is being generated.
pub struct Active {
    /// The request it belongs to.
    pub job: u64,
    /// Which of the request's samples it is.
    pub index: usize,
    pub cache: KvCache,
    pub stop: StopState,
    pub sequence: Sequence,
}

/// A token with its logprob, and the best alternatives when asked for.
pub struct Drawn {
    token: u32,
    logprob: f32,
    topk: Option<TopK>,
}

/// Draws the token at `position` of a generated sequence from its logits.
pub fn draw(request: &SampleRequest, index: usize, position: usize, logits: &[f32]) -> Result<Drawn> {
    // Inside a parallel loop a panic would take every other sequence's draw with it.
    let drawn = catch_unwind(AssertUnwindSafe(|| draw_unguarded(request, index, position, logits)));
    drawn.unwrap_or_else(|_| Err(panicked()))
}

fn draw_unguarded(request: &SampleRequest, index: usize, position: usize, logits: &[f32]) -> Result<Drawn> {
    let choice = sampling::sample(logits, &request.params, index as u32, position as u32)?;
    let k = request.topk_sample_logprobs;
    let temperature = if request.params.temperature == 0.0 { 1.0 } else { request.params.temperature };
    let topk = if k > 0 { Some(sampling::top_k_logprobs(logits, k, temperature)?) } else { None };
    Ok(Drawn { token: choice.token, logprob: choice.logprob, topk })
}

impl Active {
    pub fn last_token(&self) -> u32 {
        *self.sequence.tokens.last().expect("a sequence begins with a token")
    }

    /// What is told of the token added last.
    pub fn event(&self, ended: bool) -> TokenEvent {
        TokenEvent {
            sample: self.index,
            token: self.last_token(),
            logprob: *self.sequence.logprobs.last().expect("a token comes with its logprob"),
            topk: self.sequence.topk.as_ref().and_then(|rows| rows.last().cloned()),
            stop_reason: ended.then_some(self.sequence.stop_reason),
        }
    }

    /// Adds a token drawn from weights of this version; true when the sequence ends with it.
    pub fn push(&mut self, request: &SampleRequest, drawn: Drawn, version: u64) -> bool {
        self.sequence.weight_versions.push(version);
        self.sequence.tokens.push(drawn.token);
        self.sequence.logprobs.push(drawn.logprob);
        if let (Some(rows), Some(row)) = (&mut self.sequence.topk, drawn.topk) {
            rows.push(row);
        }
        if self.stop.push(drawn.token) {
            self.sequence.stop_reason = StopReason::Stop;
            return true;
        }
        self.sequence.tokens.len() >= request.params.max_tokens
    }
}

/// The lowest lane above `last`, else the lowest of all.
pub fn next_lane(lanes: impl Iterator<Item = u64> + Clone, last: u64) -> Option<u64> {
    lanes.clone().filter(|l| *l > last).min().or_else(|| lanes.min())
}

/// What a request is told whose pass panicked.
pub fn panicked() -> Error {
    Error::server("an internal error ended this request")
}
