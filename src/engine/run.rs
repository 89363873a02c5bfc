//! The engine's thread: takes messages, gives each owner its share of the device, answers.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::limits::Limits;
use crate::engine::handle::Message;
use crate::engine::inbox::Inbox;
use crate::engine::keep::Keeping;
use crate::engine::load::Board;
use crate::engine::memory::{self, Budgets};
use crate::engine::models::Models;
use crate::engine::sample::{Parts, Sampler, SamplerLimits};
use crate::engine::train;
use crate::error::Error;
use crate::ids::{ModelId, OwnerId};
use crate::kernels;
use crate::model::decoder::Budget;
use crate::scheduler::{Item, Pass, Scheduler, Shares, Use, Work};

/// How long a run waits for a number that never came before it goes on without it (protocol §11.2).
const GAP_LIMIT: Duration = Duration::from_secs(600);
/// Saves written at a time.
const WRITERS: usize = 2;
/// How often gaps are looked at.
const GAP_CHECK: Duration = Duration::from_secs(5);
/// How often it is looked whether a run's state is due while nothing else happens.
const KEEP_CHECK: Duration = Duration::from_millis(250);
/// How long the states of runs may take to be written at the end.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// How often writers are looked at when nothing but a save waits.
const WRITER_CHECK: Duration = Duration::from_millis(5);

/// Panics in a row that end the engine.
const PANICS: usize = 3;

/// What one turn of the loop came to.
enum Turn {
    Worked,
    Idle,
    /// Nobody is left who could ask for anything.
    Disconnected,
}

pub struct Engine {
    pub(super) models: Models,
    pub(super) inbox: Inbox,
    pub(super) sampler: Sampler,
    budget: Budget,
    gaps: HashMap<ModelId, (u64, Instant)>,
    last_gap_check: Instant,
    /// Saves that are being written.
    pub(super) writers: Vec<JoinHandle<()>>,
    pub(super) keeping: Keeping,
}

impl Engine {
    pub fn new(mut models: Models, rx: Receiver<Message>, board: Board, limits: &Limits, keeping: Keeping) -> Self {
        let budgets = Budgets::new(limits, memory::available());
        models.run_bytes = budgets.runs;
        let values = |bytes: u64| (bytes / 4) as usize;
        let activations = values(budgets.activations);
        let budget = Budget { activations, logits: values(budgets.logits) };
        let sampler = SamplerLimits { sequences: limits.decode_sequences, kv_values: values(budgets.kv_cache) };
        let sampler = Sampler::new(sampler, board.counters.clone());
        let inbox = Inbox {
            rx,
            scheduler: Scheduler::new(limits.pass_tokens),
            shares: Shares::default(),
            requests: HashMap::new(),
            barriers: HashMap::new(),
            plans: HashMap::new(),
            activations,
            stopped: None,
            board,
            published: Instant::now(),
            writers_busy: false,
            unloaded: Vec::new(),
            rollbacks: Vec::new(),
            sleepy: Vec::new(),
            drowsy: HashMap::new(),
            asleep: HashMap::new(),
            expected: HashMap::new(),
        };
        let last_gap_check = Instant::now();
        Self { models, inbox, sampler, budget, gaps: HashMap::new(), last_gap_check, writers: Vec::new(), keeping }
    }

    /// What it runs on and how much memory it gives to what, for the log.
    pub fn describe(&self) -> String {
        format!(
            "device {}; training passes may hold {} MiB of activations, runs {} MiB, sequences {} MiB of keys and values",
            kernels::describe(&self.models.device),
            self.budget.activations >> 18,
            self.models.run_bytes >> 20,
            self.sampler.kv_values() >> 18
        )
    }

    /// Runs until told to stop, or until every handle is gone. A panic outside of anybody's request is survived; one after
    /// the other, without anything done between, are not: then `broken` is called, and it ends with them.
    pub fn run(mut self, broken: &dyn Fn()) {
        let mut panics = 0;
        while self.inbox.stopped.is_none() {
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(Turn::Disconnected) => break,
                Ok(Turn::Idle) => {}
                Ok(Turn::Worked) => panics = 0,
                Err(panic) => {
                    panics += 1;
                    tracing::error!(panics, "the engine panicked");
                    if panics == PANICS {
                        // Nothing is dropped yet, so that no promise fails whose request can be done after a restart.
                        broken();
                        resume_unwind(panic);
                    }
                }
            }
        }
        self.stop();
    }

    /// Takes what has arrived and does one piece of work.
    fn turn(&mut self) -> Turn {
        let idle = self.next_trainer().is_none() && self.sampler.is_idle();
        if idle {
            self.inbox.publish(&self.sampler, true);
            self.keep_due(true);
            match self.inbox.rx.recv_timeout(self.idle_wait()) {
                Ok(m) => self.inbox.take(m, &mut self.models, &mut self.sampler),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Turn::Disconnected,
            }
        }
        self.inbox.drain(&mut self.models, &mut self.sampler);
        self.inbox.publish(&self.sampler, false);
        self.close_gaps();
        self.end_unloaded();
        self.roll_back();
        self.put_to_sleep();
        self.keep_due(false);
        self.serve_next();
        if idle { Turn::Idle } else { Turn::Worked }
    }

    /// The owner whose training work is next.
    fn next_trainer(&mut self) -> Option<OwnerId> {
        self.writers.retain(|w| !w.is_finished());
        self.inbox.writers_busy = self.writers.len() >= WRITERS;
        let Inbox { scheduler, shares, writers_busy, .. } = &self.inbox;
        scheduler.next_owner(shares, !writers_busy).cloned()
    }

    /// One piece of work for the owner who used least.
    fn serve_next(&mut self) {
        let trainer = self.next_trainer();
        if let Some(s) = self.sampler.next_owner(&self.inbox.shares)
            && trainer.as_ref().is_none_or(|t| self.inbox.shares.sampling_first(&s, std::slice::from_ref(t)))
        {
            return sample_step(&mut self.inbox, &mut self.sampler, &mut self.models, &s);
        }
        let Some(trainer) = trainer else { return };
        self.inbox.shares.serve(&trainer);
        let may_save = !self.inbox.writers_busy;
        match self.inbox.scheduler.next_work(&self.inbox.shares, may_save) {
            Some(Work::Barrier { model, seq }) => {
                let start = Instant::now();
                self.inbox.board.counters.barrier();
                self.perform(&model, seq);
                self.inbox.shares.charge(Use::Training, &[(trainer, 1)], start.elapsed().as_secs_f64());
            }
            Some(Work::Pass(pass)) => self.pass(pass),
            None => {}
        }
    }

    /// A training pass. Between its layers new messages are taken in, and owners who used less than those of the pass
    /// sample; unless somebody who used even less waits for the pass to end.
    fn pass(&mut self, pass: Pass) {
        tracing::debug!(target: "tinderbox::durability", moment = "pass", requests = pass.items.len(), "pass begins");
        let parts = self.parts(&pass);
        let tokens = self.tokens(&pass);
        let owners: Vec<OwnerId> = parts.iter().map(|(o, _)| o.clone()).collect();
        let may_save = !self.inbox.writers_busy;
        let mut requests = std::mem::take(&mut self.inbox.requests);
        let (inbox, sampler) = (&mut self.inbox, &mut self.sampler);
        inbox.board.counters.pass();
        let (last, worked) = (Cell::new(Instant::now()), Cell::new(0.0));
        let mut breathe = |models: &mut Models| {
            let time = last.get().elapsed().as_secs_f64();
            worked.set(worked.get() + time);
            inbox.shares.charge(Use::Training, &parts, time);
            loop {
                inbox.drain(models, sampler);
                inbox.publish(sampler, false);
                let Some(s) = sampler.next_owner(&inbox.shares) else { break };
                let mut trainers = owners.clone();
                trainers.extend(inbox.scheduler.next_owner(&inbox.shares, may_save).filter(|t| **t != s).cloned());
                if !inbox.shares.sampling_first(&s, &trainers) {
                    break;
                }
                sample_step(inbox, sampler, models, &s);
            }
            last.set(Instant::now());
        };
        train::run_pass(&mut self.models, &mut requests, pass, self.budget, &mut breathe);
        let time = worked.get() + last.get().elapsed().as_secs_f64();
        // What arrived meanwhile went into the empty map.
        requests.extend(self.inbox.requests.drain());
        self.inbox.requests = requests;
        self.inbox.fail_orphans();
        self.mark(&tokens);
        let all: usize = tokens.iter().map(|(_, n)| n).sum();
        for (model, n) in tokens.into_iter().filter(|(model, _)| self.models.run(model).is_some()) {
            self.keeping.worked(&model, Duration::from_secs_f64(time * n as f64 / all.max(1) as f64));
        }
        self.inbox.shares.charge(Use::Training, &parts, last.get().elapsed().as_secs_f64());
    }

    /// Tokens of a pass by run.
    fn tokens(&self, pass: &Pass) -> Vec<(ModelId, usize)> {
        let of = |item: &Item| {
            let request = self.inbox.requests.get(&(item.model.clone(), item.seq))?;
            let n = request.data[item.datums.clone()].iter().map(|d| d.tokens.len()).sum();
            Some((item.model.clone(), n))
        };
        pass.items.iter().filter_map(of).collect()
    }

    /// Tokens of a pass by owner.
    fn parts(&self, pass: &Pass) -> Parts {
        let mut tokens: HashMap<OwnerId, usize> = HashMap::new();
        for item in &pass.items {
            let request = self.inbox.requests.get(&(item.model.clone(), item.seq));
            if let (Some(owner), Some(r)) = (self.inbox.scheduler.owner(&item.model), request) {
                let n: usize = r.data[item.datums.clone()].iter().map(|d| d.tokens.len()).sum();
                *tokens.entry(owner.clone()).or_default() += n;
            }
        }
        tokens.into_iter().collect()
    }

    /// How long to wait for messages when there is nothing to do.
    fn idle_wait(&self) -> Duration {
        match () {
            () if self.inbox.scheduler.saves_wait() => WRITER_CHECK,
            () if self.keeping.waits() => KEEP_CHECK,
            () => GAP_CHECK,
        }
    }

    /// Skips numbers that runs have waited for too long.
    fn close_gaps(&mut self) {
        if self.last_gap_check.elapsed() < GAP_CHECK {
            return;
        }
        self.last_gap_check = Instant::now();
        let open: HashMap<ModelId, u64> = self.inbox.scheduler.gaps().into_iter().collect();
        self.gaps.retain(|model, (seq, _)| open.get(model) == Some(seq));
        for (model, seq) in open {
            let (_, since) = self.gaps.entry(model.clone()).or_insert_with(|| (seq, Instant::now()));
            if since.elapsed() > GAP_LIMIT {
                tracing::warn!(run = %model, seq_id = seq, "numbers from this one on never came; the run goes on");
                self.inbox.scheduler.skip_gap(&model);
                if let Some(next) = self.inbox.scheduler.next_of(&model) {
                    self.keeping.keeper().gave_up(&model, seq, next);
                }
            }
        }
    }

    fn stop(mut self) {
        let error = Error::server("the server is shutting down");
        self.sampler.cancel(&error, |_| true);
        self.inbox.fail_all(&error);
        for w in std::mem::take(&mut self.writers) {
            let _ = w.join();
        }
        self.end_unloaded();
        for model in self.keeping.unkept() {
            self.keep_all(&model);
        }
        self.keeping.finish(STOP_LIMIT);
        if let Some(stopped) = self.inbox.stopped {
            stopped();
        }
    }
}

/// One step of sampling, charged to those who had a part in it.
fn sample_step(inbox: &mut Inbox, sampler: &mut Sampler, models: &mut Models, lead: &OwnerId) {
    inbox.shares.serve(lead);
    let start = Instant::now();
    let mut parts = sampler.step(models, &inbox.shares, lead);
    if parts.is_empty() {
        parts.push((lead.clone(), 1));
    }
    inbox.shares.charge(Use::Sampling, &parts, start.elapsed().as_secs_f64());
}
