//! Sampling: prompts are run piece by piece, sequences of all samplers decode together, joining and leaving at each token.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::command::{Origin, SampleRequest};
use crate::engine::handle::{Events, Reply};
use crate::engine::job::Job;
use crate::engine::load::{HeldUp, Load, PieceCounters};
use crate::engine::models::Models;
use crate::engine::prefill::{PromptRun, kv_values};
use crate::engine::room::Room;
use crate::engine::sequence::Active;
use crate::engine::sources::Source;
use crate::engine::turns::{Turns, Waiting};
use crate::error::{Error, Result};
use crate::ids::OwnerId;
use crate::scheduler::Shares;

/// Limits of the sampler.
#[derive(Clone, Copy)]
pub struct SamplerLimits {
    pub sequences: usize,
    /// Values of keys and values of all running sequences.
    pub kv_values: usize,
}

/// All sample requests of the engine.
pub struct Sampler {
    pub(super) limits: SamplerLimits,
    pub(super) waiting: Turns,
    pub(super) prompts: Vec<PromptRun>,
    pub(super) jobs: VecDeque<(u64, Job)>,
    pub(super) next_job: u64,
    pub(super) active: Vec<Active>,
    /// Lane that decoded last.
    pub(super) last_lane: u64,
    /// Prompts and tokens take turns.
    prompts_next: bool,
    pub(super) counters: Arc<PieceCounters>,
}

/// Sequences each owner has running or about to begin.
pub(super) type Running = HashMap<OwnerId, usize>;

/// Who had a part in a step, and how large it was.
pub type Parts = Vec<(OwnerId, usize)>;

impl Sampler {
    pub fn new(limits: SamplerLimits, counters: Arc<PieceCounters>) -> Self {
        Self {
            limits,
            waiting: Turns::default(),
            prompts: Vec::new(),
            jobs: VecDeque::new(),
            next_job: 0,
            active: Vec::new(),
            last_lane: 0,
            prompts_next: true,
            counters,
        }
    }

    /// Values of keys and values it may hold.
    pub fn kv_values(&self) -> usize {
        self.limits.kv_values
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.prompts.is_empty() && self.jobs.is_empty()
    }

    /// Whether this owner has anything here.
    pub fn has(&self, owner: &OwnerId) -> bool {
        self.waiting.fronts().any(|(o, _)| o == owner) || self.begun_owners().any(|o| o == owner)
    }

    /// Queues a request; one whose cache could never fit fails at once. Its weights are looked for when its turn comes.
    pub fn submit(
        &mut self,
        models: &Models,
        (origin, ticket): (Origin, u64),
        request: SampleRequest,
        reply: Reply,
        events: Option<Events>,
    ) {
        match self.check(models, &request) {
            Ok(need) => self.waiting.push(Waiting { origin, ticket, request, reply, events, need }),
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
        for p in self.prompts.extract_if(.., |p| gone(&p.waiting.origin)) {
            (p.waiting.reply)(Err(error.clone()));
        }
        let ids: Vec<u64> = self.jobs.iter().filter(|(_, j)| gone(&j.origin)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fail(id, error.clone()));
        self.finish_jobs();
    }

    /// In-flight requests of these weights' run go on with them. What they computed so far stays: tokens, and keys and
    /// values of earlier weights.
    pub fn move_to(&mut self, source: &Arc<Source>) {
        let jobs = self.jobs.iter_mut().map(|(_, j)| &mut j.source);
        for old in jobs.chain(self.prompts.iter_mut().map(|p| &mut p.source)) {
            if source.inflight_of.is_some() && old.inflight_of == source.inflight_of {
                *old = source.clone();
            }
        }
    }

    /// The owner whose step is next: of those for whom something can be done, the one who used least.
    pub fn next_owner(&self, shares: &Shares) -> Option<OwnerId> {
        let begun = self.begun_owners();
        let waiting = if self.waiting.is_empty() { Vec::new() } else { self.may_begin(&self.room(shares)) };
        begun.chain(waiting).min_by(|a, b| shares.order(a, b)).cloned()
    }

    /// One step, in which `lead` has a part: a piece of its prompts, or one token for the sequences of one set of
    /// weights, in turn.
    pub fn step(&mut self, models: &mut Models, shares: &Shares, lead: &OwnerId) -> Parts {
        self.begin_samples(models, shares);
        let has_prompt = self.prompts.iter().any(|p| p.waiting.origin.owner == *lead)
            || self.may_begin(&self.room(shares)).contains(&lead);
        let decodes = self.active.iter().any(|a| self.job(a.job).origin.owner == *lead);
        let prompt = has_prompt && (self.prompts_next || !decodes);
        self.prompts_next = !prompt;
        if prompt { self.run_prompts(models, shares, lead) } else { self.decode(models, lead) }
    }

    /// Adds what waits and runs here, and what keeps the next ones from beginning.
    pub fn tell_load(&self, load: &mut Load, shares: &Shares) {
        for owner in self.begun_owners() {
            load.owners.entry(owner.clone()).or_default().sampling += 1;
        }
        let room = self.room(shares);
        for (owner, w) in self.waiting.fronts().filter(|(o, w)| !room.admits(o, w.need)) {
            let memory = w.need > room.values || room.slots > 0;
            let what = if memory { HeldUp::Memory } else { HeldUp::Sequences };
            load.owners.entry(owner.clone()).or_default().held_up = Some(what);
        }
        for (owner, tickets) in self.waiting.tickets() {
            load.owners.entry(owner.clone()).or_default().samples = tickets;
        }
    }

    fn begun_owners(&self) -> impl Iterator<Item = &OwnerId> {
        let prompts = self.prompts.iter().map(|p| &p.waiting.origin.owner);
        prompts.chain(self.jobs.iter().map(|(_, j)| &j.origin.owner))
    }

    /// Owners whose next request there is room for.
    pub(super) fn may_begin(&self, room: &Room) -> Vec<&OwnerId> {
        self.waiting.fronts().filter(|(o, w)| room.admits(o, w.need)).map(|(o, _)| o).collect()
    }

    /// What is left of slots and cache.
    pub(super) fn room(&self, shares: &Shares) -> Room {
        let limits = self.limits;
        let room = Room {
            slots: limits.sequences.saturating_sub(self.active.len() + self.prompts.len()),
            values: limits.kv_values.saturating_sub(self.reserved()),
            all: limits.kv_values,
            idle: self.active.is_empty() && self.jobs.is_empty() && self.prompts.is_empty(),
            running: self.running(),
            withheld: Vec::new(),
        };
        room.withhold(self.waiting.fronts().map(|(o, w)| (o, w.need)), shares)
    }

    fn running(&self) -> Running {
        let mut running = Running::new();
        for (_, job) in &self.jobs {
            *running.entry(job.origin.owner.clone()).or_default() += job.running;
        }
        for p in &self.prompts {
            *running.entry(p.waiting.origin.owner.clone()).or_default() += 1;
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
        let begun = self.prompts.iter().map(|p| p.waiting.need);
        self.active.iter().map(own).chain(prompts).chain(begun).sum()
    }

    pub(super) fn job(&self, id: u64) -> &Job {
        let at = self.jobs.binary_search_by_key(&id, |(id, _)| *id).expect("a sequence's job lives as long as it");
        &self.jobs[at].1
    }

    pub(super) fn job_mut(&mut self, id: u64) -> &mut Job {
        let at = self.jobs.binary_search_by_key(&id, |(id, _)| *id).expect("a sequence's job lives as long as it");
        &mut self.jobs[at].1
    }

    /// Fails a whole request; its other sequences are dropped.
    pub(super) fn fail(&mut self, id: u64, error: Error) {
        self.active.retain(|a| a.job != id);
        self.job_mut(id).fail(error);
    }

    /// Answers requests whose sequences have all ended, and forgets failed ones.
    pub(super) fn finish_jobs(&mut self) {
        self.jobs.iter_mut().for_each(|(_, job)| job.finish());
        self.jobs.retain(|(_, job)| job.is_open());
    }
}
