//! Sampling: prompts are run once, then sequences of all samplers decode together, joining and leaving at each token.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rayon::prelude::*;

use crate::command::{Outcome, SampleOutput, SampleRequest, Sequence, StopReason, TopK};
use crate::engine::handle::Reply;
use crate::engine::models::Models;
use crate::engine::prefill::{self, PromptDone, context, kv_values, rows_of};
use crate::engine::sources::Source;
use crate::error::{Error, Result};
use crate::kernels::download;
use crate::model::kv_cache::{KvCache, Stretch};
use crate::sampling::{self, StopState};

/// Tokens a sequence's own cache has room for at first; it doubles as needed.
const FIRST_ROOM: usize = 64;

/// A request whose prompt still has to be run.
pub struct Waiting {
    pub request: SampleRequest,
    pub source: Arc<Source>,
    reply: Reply,
}

/// A request whose prompt was run.
struct Job {
    request: SampleRequest,
    source: Arc<Source>,
    reply: Option<Reply>,
    /// The prompt's outputs; its sequences are filled in as they end.
    output: SampleOutput,
    prompt: Arc<Stretch>,
    /// Logits behind the prompt, from which every sample's first token is drawn.
    first_logits: Arc<Vec<f32>>,
    finished: Vec<Option<Sequence>>,
    /// Samples not yet begun.
    next_sample: usize,
    running: usize,
}

/// A sequence that is being generated.
struct Active {
    job: u64,
    index: usize,
    cache: KvCache,
    stop: StopState,
    sequence: Sequence,
}

/// Limits of the sampler.
#[derive(Clone, Copy)]
pub struct SamplerLimits {
    pub sequences: usize,
    /// Prompt tokens run together.
    pub prompt_tokens: usize,
    /// Values of keys and values of all running sequences.
    pub kv_values: usize,
}

/// All sample requests of the engine.
pub struct Sampler {
    limits: SamplerLimits,
    waiting: VecDeque<Waiting>,
    jobs: VecDeque<(u64, Job)>,
    next_job: u64,
    active: Vec<Active>,
    /// Lane that decoded last.
    last_lane: u64,
}

impl Sampler {
    pub fn new(limits: SamplerLimits) -> Self {
        let (waiting, jobs) = (VecDeque::new(), VecDeque::new());
        Self { limits, waiting, jobs, next_job: 0, active: Vec::new(), last_lane: 0 }
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.jobs.is_empty()
    }

    /// Queues a request. Weights that cannot be had, or a cache that could never fit, fail it at once.
    pub fn submit(&mut self, models: &mut Models, request: SampleRequest, reply: Reply) {
        match self.check(models, &request) {
            Ok(source) => self.waiting.push_back(Waiting { request, source, reply }),
            Err(e) => reply(Err(e)),
        }
    }

    fn check(&self, models: &mut Models, request: &SampleRequest) -> Result<Arc<Source>> {
        let source = models.source(&request.base, &request.source)?;
        let values = kv_values(&source, request.prompt.len() + request.params.max_tokens);
        if values > self.limits.kv_values {
            let per_token = kv_values(&source, 1);
            return Err(Error::user(format!(
                "prompt of {} tokens and max_tokens {} need a key/value cache of {} tokens; the server's limit is {}",
                request.prompt.len(),
                request.params.max_tokens,
                request.prompt.len() + request.params.max_tokens,
                self.limits.kv_values / per_token
            )));
        }
        Ok(source)
    }

    /// Fails everything, for the engine's end.
    pub fn fail_all(&mut self, error: &Error) {
        self.waiting.drain(..).for_each(|w| (w.reply)(Err(error.clone())));
        self.active.clear();
        for (_, mut job) in self.jobs.drain(..) {
            if let Some(reply) = job.reply.take() {
                reply(Err(error.clone()));
            }
        }
    }

    /// One step: prompts that fit are run, else one token is added to the sequences of one set of weights.
    pub fn step(&mut self, models: &Models, breathe: &mut dyn FnMut()) {
        self.begin_samples(models);
        if self.active.len() < self.limits.sequences && self.run_prompts(models, breathe) {
            return;
        }
        self.decode(models);
    }

    /// Values of cache that running sequences may still come to use.
    fn reserved(&self) -> usize {
        let own = |a: &Active| {
            let job = self.job(a.job);
            kv_values(&job.source, job.request.params.max_tokens)
        };
        let prompts = self.jobs.iter().map(|(_, j)| kv_values(&j.source, j.request.prompt.len()));
        self.active.iter().map(own).sum::<usize>() + prompts.sum::<usize>()
    }

    fn job(&self, id: u64) -> &Job {
        let at = self.jobs.binary_search_by_key(&id, |(id, _)| *id).expect("a sequence's job lives as long as it");
        &self.jobs[at].1
    }

    fn job_mut(&mut self, id: u64) -> &mut Job {
        let at = self.jobs.binary_search_by_key(&id, |(id, _)| *id).expect("a sequence's job lives as long as it");
        &mut self.jobs[at].1
    }

    /// Runs waiting prompts of one lane. False when none could be taken.
    fn run_prompts(&mut self, models: &Models, breathe: &mut dyn FnMut()) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let lane = first.source.lane;
        let mut room = self.limits.kv_values.saturating_sub(self.reserved());
        let (mut tokens, mut taken) = (0, Vec::new());
        let mut i = 0;
        while i < self.waiting.len() {
            let w = &self.waiting[i];
            let (len, need) =
                (w.request.prompt.len(), kv_values(&w.source, w.request.prompt.len() + w.request.params.max_tokens));
            let fits = tokens == 0 || tokens + len <= self.limits.prompt_tokens;
            if w.source.lane != lane || !fits {
                i += 1;
                continue;
            }
            if need > room && !(self.active.is_empty() && self.jobs.is_empty() && taken.is_empty()) {
                break;
            }
            room = room.saturating_sub(need);
            tokens += len;
            taken.push(self.waiting.remove(i).expect("in range"));
        }
        if taken.is_empty() {
            return false;
        }
        self.prefill(models, taken, breathe);
        true
    }

    fn prefill(&mut self, models: &Models, mut taken: Vec<Waiting>, breathe: &mut dyn FnMut()) {
        // Requests of one adapter lie side by side, so that it acts on them in one product.
        taken.sort_by_key(|w| Arc::as_ptr(&w.source) as usize);
        match catch_unwind(AssertUnwindSafe(|| prefill::run_prompts(models, &taken, breathe))) {
            Ok(results) => {
                for (w, result) in taken.into_iter().zip(results) {
                    match result {
                        Ok(done) => self.begin_job(w, done),
                        Err(e) => (w.reply)(Err(e)),
                    }
                }
                self.begin_samples(models);
            }
            Err(_) if taken.len() > 1 => {
                for w in taken {
                    self.prefill(models, vec![w], breathe);
                }
            }
            Err(_) => taken.into_iter().for_each(|w| (w.reply)(Err(panicked()))),
        }
    }

    fn begin_job(&mut self, w: Waiting, done: PromptDone) {
        let n = w.request.num_samples;
        let job = Job {
            request: w.request,
            source: w.source,
            reply: Some(w.reply),
            output: done.output,
            prompt: Arc::new(done.stretch),
            first_logits: Arc::new(done.logits),
            finished: vec![None; n],
            next_sample: 0,
            running: 0,
        };
        self.jobs.push_back((self.next_job, job));
        self.next_job += 1;
    }

    /// Starts samples while there is room for their sequences, oldest request first.
    fn begin_samples(&mut self, models: &Models) {
        let mut room = self.limits.sequences.saturating_sub(self.active.len());
        let mut starts = Vec::new();
        for (id, job) in &mut self.jobs {
            while room > 0 && job.next_sample < job.request.num_samples && job.reply.is_some() {
                starts.push((*id, job.next_sample));
                job.next_sample += 1;
                job.running += 1;
                room -= 1;
            }
        }
        if starts.is_empty() {
            return;
        }
        let begin = |(id, index): (u64, usize)| (id, self.begin_sample(models, id, index));
        let begun: Vec<_> = starts.into_iter().map(begin).collect();
        for (id, result) in begun {
            match result {
                Ok((active, ended)) => self.keep(active, ended),
                Err(e) => self.fail(id, e),
            }
        }
        self.finish_jobs();
    }

    fn begin_sample(&self, models: &Models, id: u64, index: usize) -> Result<(Active, bool)> {
        let job = self.job(id);
        let base = &job.source.base;
        let strings = matches!(job.request.params.stop, crate::command::Stop::Strings(_));
        let tokenizer = if strings { Some(base.tokenizer()?) } else { None };
        let stop = StopState::new(&job.request.params.stop, &base.config().eos_ids, tokenizer)?;
        let topk = (job.request.topk_sample_logprobs > 0).then(Vec::new);
        let sequence = Sequence { tokens: Vec::new(), logprobs: Vec::new(), stop_reason: StopReason::Length, topk };
        let room = job.request.params.max_tokens.min(FIRST_ROOM);
        let own = Stretch::new(base.config(), room, &models.device);
        let mut active = Active { job: id, index, cache: KvCache { prompt: job.prompt.clone(), own }, stop, sequence };
        let token = draw(&job.request, index, 0, &job.first_logits)?;
        let ended = active.push(&job.request, token);
        Ok((active, ended))
    }

    fn keep(&mut self, active: Active, ended: bool) {
        if ended { self.end(active) } else { self.active.push(active) }
    }

    fn end(&mut self, active: Active) {
        let job = self.job_mut(active.job);
        job.running -= 1;
        job.finished[active.index] = Some(active.sequence);
    }

    /// Fails a whole request; its other sequences are dropped.
    fn fail(&mut self, id: u64, error: Error) {
        self.active.retain(|a| a.job != id);
        let job = self.job_mut(id);
        job.running = 0;
        if let Some(reply) = job.reply.take() {
            reply(Err(error));
        }
    }

    /// Answers requests whose sequences have all ended, and forgets failed ones.
    fn finish_jobs(&mut self) {
        for (_, job) in &mut self.jobs {
            if job.running == 0
                && job.next_sample == job.request.num_samples
                && let Some(reply) = job.reply.take()
            {
                let mut output = std::mem::take(&mut job.output);
                output.sequences = job.finished.drain(..).map(|s| s.expect("every sample has ended")).collect();
                reply(Ok(Outcome::Sampled(output)));
            }
        }
        self.jobs.retain(|(_, job)| job.reply.is_some());
    }

    /// Adds a token to every running sequence of the next lane in turn.
    fn decode(&mut self, models: &Models) {
        let lanes = self.active.iter().map(|a| self.job(a.job).source.lane);
        let Some(lane) = next_lane(lanes, self.last_lane) else { return };
        self.last_lane = lane;
        let all = std::mem::take(&mut self.active);
        let (mut now, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| self.job(a.job).source.lane == lane);
        self.active = rest;
        now.sort_by_key(|a| (Arc::as_ptr(&self.job(a.job).source) as usize, a.job, a.index));
        let Ok(logits) = catch_unwind(AssertUnwindSafe(|| self.decode_logits(models, &mut now))) else {
            for a in now {
                if self.jobs.iter().any(|(id, j)| *id == a.job && j.reply.is_some()) {
                    self.fail(a.job, panicked());
                }
            }
            return self.finish_jobs();
        };
        let vocab = logits.len() / now.len();
        let place = |a: &Active| (&self.job(a.job).request, a.index, a.sequence.tokens.len());
        let places: Vec<(&SampleRequest, usize, usize)> = now.iter().map(place).collect();
        let drawn: Vec<Result<Drawn>> = places
            .par_iter()
            .zip(logits.par_chunks(vocab))
            .map(|((request, index, position), row)| draw(request, *index, *position, row))
            .collect();
        for (mut active, drawn) in now.into_iter().zip(drawn) {
            let id = active.job;
            if self.job(id).reply.is_none() {
                continue;
            }
            match drawn {
                Ok(token) => {
                    let ended = active.push(&self.job(id).request, token);
                    self.keep(active, ended);
                }
                Err(e) => self.fail(id, e),
            }
        }
        self.finish_jobs();
    }

    fn decode_logits(&self, models: &Models, now: &mut [Active]) -> Vec<f32> {
        let sources: Vec<Arc<Source>> = now.iter().map(|a| self.job(a.job).source.clone()).collect();
        let batch = rows_of(&sources, now.iter().map(|a| (a.last_token(), a.cache.len() as u32)));
        let context = context(models, &sources[0], &batch);
        let mut caches: Vec<&mut KvCache> = now.iter_mut().map(|a| &mut a.cache).collect();
        let h = context.decode(&mut caches);
        download(context.logits(&h))
    }
}

/// The lowest lane above `last`, else the lowest of all.
fn next_lane(lanes: impl Iterator<Item = u64> + Clone, last: u64) -> Option<u64> {
    lanes.clone().filter(|l| *l > last).min().or_else(|| lanes.min())
}

fn panicked() -> Error {
    Error::server("an internal error ended this request")
}

struct Drawn {
    token: u32,
    logprob: f32,
    topk: Option<TopK>,
}

/// Draws the token at `position` of a generated sequence from its logits.
fn draw(request: &SampleRequest, index: usize, position: usize, logits: &[f32]) -> Result<Drawn> {
    let choice = sampling::sample(logits, &request.params, index as u32, position as u32)?;
    let k = request.topk_sample_logprobs;
    let temperature = if request.params.temperature == 0.0 { 1.0 } else { request.params.temperature };
    let topk = if k > 0 { Some(sampling::top_k_logprobs(logits, k, temperature)?) } else { None };
    Ok(Drawn { token: choice.token, logprob: choice.logprob, topk })
}

impl Active {
    fn last_token(&self) -> u32 {
        *self.sequence.tokens.last().expect("a sequence begins with a token")
    }

    /// Adds a token; true when the sequence ends with it.
    fn push(&mut self, request: &SampleRequest, drawn: Drawn) -> bool {
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
