//! What a sample request may ask about its prompt: logprobs, top-k, given targets, alternatives. All at temperature 1.

use std::ops::Range;

use rayon::prelude::*;

use crate::command::{SampleOutput, SampleRequest, TopK};
use crate::engine::models::Models;
use crate::engine::prefill::context;
use crate::engine::sources::Source;
use crate::error::Result;
use crate::kernels::{Mat, download};
use crate::model::batch::{Batch, Group};
use crate::sampling::{self, Tempered};

/// Logits held at a time, in values, and positions answered at a time: others get their turn in between.
const PIECE_VALUES: usize = 1 << 24;
const PIECE_ROWS: usize = 32;

/// What one prompt position says of the token behind it.
#[derive(Default)]
struct Row {
    logprob: f32,
    topk: TopK,
    targets: Vec<f32>,
    alternatives: TopK,
}

/// What is known of a prompt so far, position by position.
pub struct Answers {
    rows: Vec<Row>,
    /// First position anything was asked of.
    wanted: usize,
}

impl Answers {
    pub fn new(request: &SampleRequest) -> Self {
        let wanted = wanted_from(request);
        let mut rows = Vec::with_capacity(request.prompt.len());
        rows.resize_with(wanted, Row::default);
        Self { rows, wanted }
    }

    /// Those of the positions that still have to be answered. Position i speaks of token i + 1; nothing follows the last.
    pub fn open(&self, request: &SampleRequest, positions: &Range<usize>) -> Option<Range<usize>> {
        let open = self.rows.len().max(positions.start)..positions.end.min(request.prompt.len() - 1);
        (!open.is_empty()).then_some(open)
    }

    /// Answers the first few of the positions `open`, from the hidden states h (T, D) of `h_from` and following.
    pub fn answer(
        &mut self,
        models: &Models,
        request: &SampleRequest,
        source: &Source,
        h: &Mat,
        h_from: usize,
        open: Range<usize>,
    ) -> Result<()> {
        let vocab = source.base.config().vocab_size;
        let rows = open.len().min((PIECE_VALUES / vocab).clamp(1, PIECE_ROWS));
        let group = Group { rows: 0..rows, adapter: source.adapter(), seqs: Vec::new() };
        let batch = Batch { tokens: Vec::new(), positions: Vec::new(), groups: vec![group] };
        let h = h.clone().narrow(0, open.start - h_from, rows);
        let logits = download(context(models, source, &batch).logits(&h));
        let part: Result<Vec<Row>> =
            logits.par_chunks(vocab).enumerate().map(|(i, row)| answer(request, open.start + i, row)).collect();
        self.rows.extend(part?);
        Ok(())
    }

    /// All answers in the order of the prompt; sequences are still missing.
    pub fn into_output(self, request: &SampleRequest) -> SampleOutput {
        collect(request, self.rows, self.wanted)
    }
}

/// First position whose logits are needed.
fn wanted_from(request: &SampleRequest) -> usize {
    let n = request.prompt.len();
    let everything = request.topk_prompt_logprobs > 0 || request.prompt_alt_tokens_k > 0;
    if everything || (request.prompt_logprobs && request.prompt_logprobs_last_n.is_none()) {
        return 0;
    }
    let last_n = if request.prompt_logprobs { request.prompt_logprobs_last_n } else { None };
    let from_last_n = last_n.map_or(n, |k| n.saturating_sub(k + 1));
    let targets = request.prompt_targets.iter().flatten().position(|row| row.iter().any(Option::is_some));
    from_last_n.min(targets.unwrap_or(n))
}

fn answer(request: &SampleRequest, position: usize, logits: &[f32]) -> Result<Row> {
    let distribution = Tempered::new(logits, 1.0)?;
    let k = request.topk_prompt_logprobs;
    let targets = request.prompt_targets.as_ref().map(|t| &t[position]);
    let logprob_of = |id: &Option<u32>| id.map_or(0.0, |id| distribution.logprob(id));
    let alternatives = request.prompt_alt_tokens_k;
    Ok(Row {
        logprob: distribution.logprob(request.prompt[position + 1]),
        topk: if k > 0 { sampling::top_k_logprobs(logits, k, 1.0)? } else { TopK::new() },
        targets: targets.map_or_else(Vec::new, |t| t.iter().map(logprob_of).collect()),
        alternatives: if alternatives > 0 {
            sampling::alternatives(logits, alternatives, request.params.seed, position as u32)?
        } else {
            TopK::new()
        },
    })
}

fn collect(request: &SampleRequest, answers: Vec<Row>, wanted: usize) -> SampleOutput {
    let n = request.prompt.len();
    let first_scored = request.prompt_logprobs_last_n.map_or(1, |k| n.saturating_sub(k).max(1));
    let logprob = |i: usize| if i >= first_scored { answers[i - 1].logprob } else { f32::NAN };
    let topk = |i: usize| if i == 0 { TopK::new() } else { answers[i - 1].topk.clone() };
    let width = |i: usize| request.prompt_targets.as_ref().map_or(0, |t| t[i].len());
    let targets = |i: usize| match answers.get(i) {
        Some(row) if i >= wanted => row.targets.clone(),
        _ => vec![0.0; width(i)],
    };
    SampleOutput {
        sequences: Vec::new(),
        prompt_logprobs: request.prompt_logprobs.then(|| (0..n).map(logprob).collect()),
        topk_prompt_logprobs: (request.topk_prompt_logprobs > 0).then(|| (0..n).map(topk).collect()),
        target_prompt_logprobs: request.prompt_targets.is_some().then(|| (0..n - 1).map(targets).collect()),
        prompt_alt_tokens: (request.prompt_alt_tokens_k > 0)
            .then(|| answers.iter().map(|row| row.alternatives.clone()).collect()),
    }
}
