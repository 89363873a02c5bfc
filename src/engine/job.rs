//! A request whose prompt was run: its samples, and its end.

use std::sync::Arc;

use crate::command::{Origin, Outcome, SampleOutput, SampleRequest, Sequence, StopReason};
use crate::engine::handle::{Events, Reply};
use crate::engine::models::Models;
use crate::engine::prefill::PromptDone;
use crate::engine::sequence::{Active, draw};
use crate::engine::sources::Source;
use crate::error::{Error, Result};
use crate::model::kv_cache::{KvCache, Stretch};
use crate::sampling::StopState;

/// Tokens a sequence's own cache has room for at first; it doubles as needed.
const FIRST_ROOM: usize = 64;

pub struct Job {
    pub origin: Origin,
    pub request: SampleRequest,
    /// What the next token is drawn from. In-flight weights may move on between two tokens; keys and values stay.
    pub source: Arc<Source>,
    reply: Option<Reply>,
    events: Option<Events>,
    /// The prompt's outputs; its sequences are filled in as they end.
    output: SampleOutput,
    prompt: Arc<Stretch>,
    /// Logits behind the prompt, from which every sample's first token is drawn, and their weights' version.
    first_logits: Vec<f32>,
    first_version: u64,
    finished: Vec<Option<Sequence>>,
    /// Samples not yet begun.
    next_sample: usize,
    pub running: usize,
}

impl Job {
    pub fn new(done: PromptDone) -> Self {
        let w = done.waiting;
        Self {
            finished: vec![None; w.request.num_samples],
            origin: w.origin,
            request: w.request,
            source: done.source,
            reply: Some(w.reply),
            events: w.events,
            output: done.output,
            prompt: Arc::new(done.stretch),
            first_logits: done.logits,
            first_version: done.version,
            next_sample: 0,
            running: 0,
        }
    }

    /// Not failed, and not answered.
    pub fn is_open(&self) -> bool {
        self.reply.is_some()
    }

    /// Whether samples are still to be begun.
    pub fn has_more(&self) -> bool {
        self.is_open() && self.next_sample < self.request.num_samples
    }

    /// Counts one more sample as begun: → its index.
    pub fn begin(&mut self) -> usize {
        self.next_sample += 1;
        self.running += 1;
        self.next_sample - 1
    }

    /// A sample with its first token; true when it ends with it.
    pub fn first_token(&self, models: &Models, id: u64, index: usize) -> Result<(Active, bool)> {
        let base = &self.source.base;
        let params = &self.request.params;
        let strings = matches!(params.stop, crate::command::Stop::Strings(_));
        let tokenizer = if strings { Some(base.tokenizer()?) } else { None };
        let stop = StopState::new(&params.stop, &base.config().eos_ids, tokenizer)?;
        let sequence = Sequence {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            stop_reason: StopReason::Length,
            topk: (self.request.topk_sample_logprobs > 0).then(Vec::new),
            weight_versions: Vec::new(),
        };
        let own = Stretch::new(base.config(), params.max_tokens.min(FIRST_ROOM), params.max_tokens, &models.device);
        let mut active = Active { job: id, index, cache: KvCache { prompt: self.prompt.clone(), own }, stop, sequence };
        let token = draw(&self.request, index, 0, &self.first_logits)?;
        let ended = active.push(&self.request, token, self.first_version);
        Ok((active, ended))
    }

    /// Tells whoever listens of the token added last.
    pub fn tell(&self, active: &Active, ended: bool) {
        if let Some(events) = &self.events {
            let _ = events.send(active.event(ended));
        }
    }

    /// Keeps a sample that has ended.
    pub fn end(&mut self, active: Active) {
        self.running -= 1;
        self.finished[active.index] = Some(active.sequence);
    }

    pub fn fail(&mut self, error: Error) {
        self.running = 0;
        if let Some(reply) = self.reply.take() {
            reply(Err(error));
        }
    }

    /// Answers when every sample has ended.
    pub fn finish(&mut self) {
        if self.running == 0
            && self.next_sample == self.request.num_samples
            && let Some(reply) = self.reply.take()
        {
            let mut output = std::mem::take(&mut self.output);
            output.sequences = self.finished.drain(..).map(|s| s.expect("every sample has ended")).collect();
            reply(Ok(Outcome::Sampled(output)));
        }
    }
}
