//! Running prompts, piece by piece: their caches, what was asked about them, and the logits behind them.

use std::ops::Range;
use std::sync::Arc;

use crate::command::SampleOutput;
use crate::engine::models::Models;
use crate::engine::prompt::Answers;
use crate::engine::sources::Source;
use crate::engine::turns::Waiting;
use crate::error::Result;
use crate::kernels::{Mat, Pass, download};
use crate::model::batch::{Batch, Group, Part};
use crate::model::config::DecoderConfig;
use crate::model::kv_cache::Stretch;
use crate::model::layer::Context;

/// Prompt tokens run together; others get their turn in between.
pub const PIECE_TOKENS: usize = 256;

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

/// A request whose prompt is being run.
pub struct PromptRun {
    pub waiting: Waiting,
    /// What the next piece reads. In-flight weights may move on between pieces; what was computed stays.
    pub source: Arc<Source>,
    stretch: Stretch,
    /// Tokens that are through.
    done: usize,
    answers: Answers,
    /// The last piece, while questions about it are open.
    piece: Option<Piece>,
    /// Logits behind the whole prompt, and the version of the weights that gave them.
    end: Option<(Vec<f32>, u64)>,
}

/// Hidden states (T, D) of a piece of a prompt and the weights they come from.
struct Piece {
    h: Mat,
    positions: Range<usize>,
    source: Arc<Source>,
}

/// What running a prompt gave.
pub struct PromptDone {
    pub waiting: Waiting,
    pub source: Arc<Source>,
    /// Answers about the prompt itself.
    pub output: SampleOutput,
    pub stretch: Stretch,
    /// Logits behind the prompt's last token, and the version of the weights that gave them.
    pub logits: Vec<f32>,
    pub version: u64,
}

impl PromptRun {
    pub fn new(models: &Models, waiting: Waiting, source: Arc<Source>) -> Self {
        let n = waiting.request.prompt.len();
        let stretch = Stretch::new(source.base.config(), n, n, &models.device);
        let answers = Answers::new(&waiting.request);
        Self { waiting, source, stretch, done: 0, answers, piece: None, end: None }
    }

    /// Tokens to run next, when there is room for so many. Pieces end at multiples of the attention's blocks.
    pub fn next_tokens(&self, room: usize) -> usize {
        let left = self.waiting.request.prompt.len() - self.done;
        if left <= room { left } else { room / 64 * 64 }
    }

    /// Whether questions about the last piece come before the next one.
    pub fn has_questions(&self) -> bool {
        self.piece.is_some()
    }

    /// Answers a few of the open questions.
    pub fn answer(&mut self, models: &Models) -> Result<()> {
        let request = &self.waiting.request;
        let Some(piece) = &self.piece else { return Ok(()) };
        if let Some(open) = self.answers.open(request, &piece.positions) {
            self.answers.answer(models, request, &piece.source, &piece.h, piece.positions.start, open)?;
        }
        if self.answers.open(request, &piece.positions).is_none() {
            self.piece = None;
        }
        Ok(())
    }

    pub fn is_done(&self) -> bool {
        self.end.is_some() && self.piece.is_none()
    }

    pub fn into_done(self) -> Option<PromptDone> {
        let Self { waiting, source, stretch, answers, end, .. } = self;
        let (logits, version) = end?;
        let output = answers.into_output(&waiting.request);
        Some(PromptDone { waiting, source, output, stretch, logits, version })
    }
}

/// Runs the next `tokens` of each prompt, all of one lane. Changes nothing but scratch space until all is computed, so
/// that it can be repeated after a panic.
pub fn run_pieces(models: &Models, runs: &mut [&mut PromptRun], tokens: &[usize]) {
    let sources: Vec<Arc<Source>> = runs.iter().map(|r| r.source.clone()).collect();
    let mut groups: Vec<(Option<_>, Vec<Part<&[u32]>>)> = Vec::new();
    let mut stretches = Vec::with_capacity(runs.len());
    let mut ends = Vec::new();
    for (i, (r, n)) in runs.iter_mut().zip(tokens).enumerate() {
        if i == 0 || !Arc::ptr_eq(&sources[i], &sources[i - 1]) {
            groups.push((sources[i].adapter(), Vec::new()));
        }
        let (request, done) = (&r.waiting.request, r.done);
        groups.last_mut().expect("just pushed").1.push((done as u32, &request.prompt[done..done + n]));
        ends.push(done + n == request.prompt.len());
        r.stretch.truncate(done);
        stretches.push(&mut r.stretch);
    }
    let batch = Batch::pack_from(groups);
    let h = context(models, &sources[0], &batch).extend(&mut stretches);
    let seqs = batch.seqs();
    let logits = last_logits(models, &sources, &batch, &h, &ends);
    let mut logits = logits.into_iter();
    for ((r, rows), ended) in runs.iter_mut().zip(seqs).zip(ends) {
        let positions = r.done..r.done + rows.len();
        r.done = positions.end;
        if r.answers.open(&r.waiting.request, &positions).is_some() {
            let h = h.clone().narrow(0, rows.start, rows.len());
            r.piece = Some(Piece { h, positions, source: r.source.clone() });
        }
        if ended {
            r.end = logits.next().map(|l| (l, r.source.version));
        }
    }
}

/// Logits behind the last token of each sequence that is at its end.
fn last_logits(models: &Models, sources: &[Arc<Source>], batch: &Batch, h: &Mat, ends: &[bool]) -> Vec<Vec<f32>> {
    let seqs = batch.seqs();
    let ended: Vec<usize> = (0..ends.len()).filter(|i| ends[*i]).collect();
    if ended.is_empty() {
        return Vec::new();
    }
    let last: Vec<usize> = ended.iter().map(|i| seqs[*i].end - 1).collect();
    let sources: Vec<Arc<Source>> = ended.iter().map(|i| sources[*i].clone()).collect();
    let rows = rows_of(&sources, last.iter().map(|at| (batch.tokens[*at], batch.positions[*at])));
    let h = last.iter().map(|at| h.clone().narrow(0, *at, 1)).collect();
    let logits = download(context(models, &sources[0], &rows).logits(&Mat::cat(h, 0)));
    let vocab = sources[0].base.config().vocab_size;
    logits.chunks(vocab).map(<[f32]>::to_vec).collect()
}
