//! Sampling: prompts are run once, then sequences of all samplers decode together, joining and leaving at each token.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rayon::prelude::*;

use crate::command::{Origin, Outcome, SampleOutput, SampleRequest, Sequence, StopReason};
use crate::engine::handle::{Events, Reply};
use crate::engine::models::Models;
use crate::engine::prefill::{self, Prompt, PromptDone, context, kv_values, rows_of};
use crate::engine::sequence::{Active, Drawn, draw, next_lane, panicked};
use crate::engine::sources::Source;
use crate::engine::turns::{Running, Turns, Waiting};
use crate::error::{Error, Result};
use crate::kernels::download;
use crate::model::kv_cache::{KvCache, Stretch};
use crate::sampling::StopState;

/// Tokens a sequence's own cache has room for at first; it doubles as needed.
const FIRST_ROOM: usize = 64;

/// A request whose prompt was run.
struct Job {
    origin: Origin,
    request: SampleRequest,
    source: Arc<Source>,
    reply: Option<Reply>,
    events: Option<Events>,
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
    waiting: Turns,
    jobs: VecDeque<(u64, Job)>,
    next_job: u64,
    active: Vec<Active>,
    /// Lane that decoded last.
    last_lane: u64,
    /// Prompts and tokens take turns.
    prompts_next: bool,
}

impl Sampler {
    pub fn new(limits: SamplerLimits) -> Self {
        Self {
            limits,
            waiting: Turns::default(),
            jobs: VecDeque::new(),
            next_job: 0,
            active: Vec::new(),
            last_lane: 0,
            prompts_next: true,
        }
    }

    /// Values of keys and values it may hold.
    pub fn kv_values(&self) -> usize {
        self.limits.kv_values
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.jobs.is_empty()
    }

    /// Queues a request; one whose cache could never fit fails at once. Its weights are looked for when its turn comes.
    pub fn submit(
        &mut self,
        models: &Models,
        origin: Origin,
        request: SampleRequest,
        reply: Reply,
        events: Option<Events>,
    ) {
        match self.check(models, &request) {
            Ok(need) => self.waiting.push(Waiting { origin, request, reply, events, need }),
            Err(e) => reply(Err(e)),
        }
    }

    /// The values of cache that the request needs.
    fn check(&self, models: &Models, request: &SampleRequest) -> Result<usize> {
        let config = models.config(&request.base)?;
        let tokens = request.prompt.len() + request.params.max_tokens;
        let most = self.limits.kv_values / kv_values(config, 1);
        if tokens <= most {
            return Ok(kv_values(config, tokens));
        }
        Err(Error::user(format!(
            "prompt of {} tokens and max_tokens {} need a key/value cache of {tokens} tokens; the server's limit is {most}",
            request.prompt.len(),
            request.params.max_tokens,
        )))
    }

    /// Drops the requests that `gone` names; their replies get the error.
    pub fn cancel(&mut self, error: &Error, gone: impl Fn(&Origin) -> bool) {
        self.waiting.cancel(&gone).into_iter().for_each(|w| (w.reply)(Err(error.clone())));
        let ids: Vec<u64> = self.jobs.iter().filter(|(_, j)| gone(&j.origin)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fail(id, error.clone()));
        self.finish_jobs();
    }

    /// One step: prompts that fit are run, or one token is added to the sequences of one set of weights, in turn.
    pub fn step(&mut self, models: &mut Models) {
        self.begin_samples(models);
        let turn = self.prompts_next || self.active.is_empty();
        self.prompts_next = !self.prompts_next;
        if !(turn && self.run_prompts(models)) {
            self.decode(models);
        }
    }

    /// Sequences each owner has running or about to begin.
    fn running(&self) -> Running {
        let mut running = Running::new();
        for (_, job) in &self.jobs {
            *running.entry(job.origin.owner.clone()).or_default() += job.running;
        }
        running
    }

    /// Values of cache that running sequences may still come to use.
    fn reserved(&self) -> usize {
        let own = |a: &Active| {
            let job = self.job(a.job);
            kv_values(job.source.base.config(), job.request.params.max_tokens)
        };
        let prompts = self.jobs.iter().map(|(_, j)| kv_values(j.source.base.config(), j.request.prompt.len()));
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

    /// Runs waiting prompts of one lane, each time of the owner whose turn it is. False when none could be taken.
    fn run_prompts(&mut self, models: &mut Models) -> bool {
        let mut running = self.running();
        let (all, mut slots) = (self.limits.kv_values, self.limits.sequences.saturating_sub(self.active.len()));
        let mut room = all.saturating_sub(self.reserved());
        let mut idle = self.active.is_empty() && self.jobs.is_empty();
        let (mut taken, mut tokens): (Vec<(Waiting, Arc<Source>)>, usize) = (Vec::new(), 0);
        while !self.waiting.is_empty() {
            let may_begin = |w: &Waiting, begun: usize| {
                // An owner who has nothing running may always begin something small: what runs could hold slots and
                // memory for long.
                let newcomer = begun == 0 && w.need <= all / 16;
                let fits = tokens == 0 || tokens + w.request.prompt.len() <= self.limits.prompt_tokens;
                fits && ((slots > 0 && w.need <= room) || newcomer || idle)
            };
            let Some(w) = self.waiting.take(&running, may_begin) else { break };
            let source = match models.source(&w.request.base, &w.request.source) {
                Ok(source) => source,
                Err(e) => {
                    (w.reply)(Err(e));
                    continue;
                }
            };
            if taken.first().is_some_and(|(_, first)| first.lane != source.lane) {
                self.waiting.put_back(w);
                break;
            }
            room = room.saturating_sub(w.need);
            slots = slots.saturating_sub(1);
            tokens += w.request.prompt.len();
            idle = false;
            *running.entry(w.origin.owner.clone()).or_default() += 1;
            taken.push((w, source));
        }
        let any = !taken.is_empty();
        if any {
            self.prefill(models, taken);
        }
        any
    }

    fn prefill(&mut self, models: &Models, mut taken: Vec<(Waiting, Arc<Source>)>) {
        // Requests of one adapter lie side by side, so that it acts on them in one product.
        taken.sort_by_key(|(_, source)| Arc::as_ptr(source) as usize);
        let prompts: Vec<Prompt> = taken.iter().map(|(w, source)| Prompt { waiting: w, source }).collect();
        match catch_unwind(AssertUnwindSafe(|| prefill::run_prompts(models, &prompts))) {
            Ok(results) => {
                for ((w, source), result) in taken.into_iter().zip(results) {
                    match result {
                        Ok(done) => self.begin_job(w, source, done),
                        Err(e) => (w.reply)(Err(e)),
                    }
                }
                self.begin_samples(models);
            }
            Err(_) if taken.len() > 1 => {
                for one in taken {
                    self.prefill(models, vec![one]);
                }
            }
            Err(_) => taken.into_iter().for_each(|(w, _)| (w.reply)(Err(panicked()))),
        }
    }

    fn begin_job(&mut self, w: Waiting, source: Arc<Source>, done: PromptDone) {
        let n = w.request.num_samples;
        let job = Job {
            origin: w.origin,
            request: w.request,
            source,
            reply: Some(w.reply),
            events: w.events,
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

    /// Starts samples while there is room, each time of the owner who has the fewest; one without any may always begin.
    fn begin_samples(&mut self, models: &Models) {
        let mut room = self.limits.sequences.saturating_sub(self.active.len());
        if self.jobs.iter().all(|(_, j)| j.next_sample == j.request.num_samples) {
            return;
        }
        let mut cache = self.limits.kv_values.saturating_sub(self.reserved());
        let mut running = self.running();
        let mut starts = Vec::new();
        loop {
            let begun = |j: &Job| running.get(&j.origin.owner).copied().unwrap_or(0);
            let open = self.jobs.iter_mut().filter(|(_, j)| j.reply.is_some() && j.next_sample < j.request.num_samples);
            let Some((id, job)) = open.min_by_key(|(id, j)| (begun(j), *id)) else { break };
            let need = kv_values(job.source.base.config(), job.request.params.max_tokens);
            if (room == 0 || need > cache) && begun(job) > 0 {
                break;
            }
            cache = cache.saturating_sub(need);
            starts.push((*id, job.next_sample));
            job.next_sample += 1;
            job.running += 1;
            *running.entry(job.origin.owner.clone()).or_default() += 1;
            room = room.saturating_sub(1);
        }
        if starts.is_empty() {
            return;
        }
        let begin = |(id, index): (u64, usize)| {
            (
                id,
                catch_unwind(AssertUnwindSafe(|| self.begin_sample(models, id, index)))
                    .unwrap_or_else(|_| Err(panicked())),
            )
        };
        let begun: Vec<_> = starts.into_iter().map(begin).collect();
        for (id, result) in begun {
            match result {
                // One sample's failure is the whole request's.
                Ok(_) if self.job(id).reply.is_none() => {}
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
        let own = Stretch::new(base.config(), room, job.request.params.max_tokens, &models.device);
        let mut active = Active { job: id, index, cache: KvCache { prompt: job.prompt.clone(), own }, stop, sequence };
        let token = draw(&job.request, index, 0, &job.first_logits)?;
        let ended = active.push(&job.request, token);
        Ok((active, ended))
    }

    fn keep(&mut self, active: Active, ended: bool) {
        if let Some(events) = &self.job(active.job).events {
            let _ = events.send(active.event(ended));
        }
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
                    let request = &self.job(id).request;
                    match catch_unwind(AssertUnwindSafe(|| active.push(request, token))) {
                        Ok(ended) => self.keep(active, ended),
                        Err(_) => self.fail(id, panicked()),
                    }
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
        let shares = now.iter().map(|a| (self.job(a.job).origin.promise.clone(), 1)).collect();
        let mut caches: Vec<&mut KvCache> = now.iter_mut().map(|a| &mut a.cache).collect();
        models.meter.samples(shares, || download(context.logits(&context.decode(&mut caches))))
    }
}
