//! The engine's thread: takes messages, asks the scheduler what is next, does it, answers.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::command::{Command, Datum, Outcome, RunCommand, Save};
use crate::config::limits::Limits;
use crate::engine::handle::{Message, NOW, Reply, Stopped, Submission};
use crate::engine::memory::{self, Budgets};
use crate::engine::meter::Consumer;
use crate::engine::models::{Models, Run, lost};
use crate::engine::sample::{Sampler, SamplerLimits};
use crate::engine::train::{self, Request, Requests};
use crate::engine::weights;
use crate::error::{Error, Result};
use crate::ids::ModelId;
use crate::model::decoder::Budget;
use crate::scheduler::{Job, Lane, Scheduler, Work};

/// How long a run waits for a number that never came before it goes on without it (protocol §11.2).
const GAP_LIMIT: Duration = Duration::from_secs(600);
/// Saves written at a time.
const WRITERS: usize = 2;
/// How often gaps are looked at.
const GAP_CHECK: Duration = Duration::from_secs(5);

/// Messages, and what has been made of them.
struct Inbox {
    rx: Receiver<Message>,
    scheduler: Scheduler,
    requests: Requests,
    /// Commands that are barriers of their run, by run and number.
    barriers: HashMap<(ModelId, u64), (RunCommand, Reply)>,
    /// Values of activations a training pass may keep.
    activations: usize,
    /// Called when everything has ended; set once the engine is told to stop.
    stopped: Option<Stopped>,
}

pub struct Engine {
    models: Models,
    inbox: Inbox,
    sampler: Sampler,
    budget: Budget,
    gaps: HashMap<ModelId, (u64, Instant)>,
    last_gap_check: Instant,
    /// Saves that are being written.
    writers: Vec<JoinHandle<()>>,
}

impl Engine {
    pub fn new(mut models: Models, rx: Receiver<Message>, limits: &Limits) -> Self {
        let budgets = Budgets::new(limits, memory::available());
        models.run_bytes = budgets.runs;
        let values = |bytes: u64| (bytes / 4) as usize;
        let activations = values(budgets.activations);
        let budget = Budget { activations, logits: values(budgets.logits) };
        let sampler = Sampler::new(SamplerLimits {
            sequences: limits.decode_sequences,
            prompt_tokens: limits.pass_tokens,
            kv_values: values(budgets.kv_cache),
        });
        let inbox = Inbox {
            rx,
            scheduler: Scheduler::new(limits.pass_tokens),
            requests: HashMap::new(),
            barriers: HashMap::new(),
            activations,
            stopped: None,
        };
        let last_gap_check = Instant::now();
        Self { models, inbox, sampler, budget, gaps: HashMap::new(), last_gap_check, writers: Vec::new() }
    }

    /// What it runs on and how much memory it gives to what, for the log.
    pub fn describe(&self) -> String {
        format!(
            "device {:?}; training passes may hold {} MiB of activations, runs {} MiB, sequences {} MiB of keys and values",
            self.models.device,
            self.budget.activations >> 18,
            self.models.run_bytes >> 20,
            self.sampler.kv_values() >> 18
        )
    }

    /// Runs until told to stop, or until every handle is gone.
    pub fn run(mut self) {
        while self.inbox.stopped.is_none() {
            if self.inbox.scheduler.is_idle() && self.sampler.is_idle() {
                match self.inbox.rx.recv_timeout(GAP_CHECK) {
                    Ok(m) => self.inbox.take(m, &mut self.models, &mut self.sampler),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            self.inbox.drain(&mut self.models, &mut self.sampler);
            self.close_gaps();
            if let Some(work) = self.inbox.scheduler.next_work() {
                self.perform(work);
            }
            if !self.sampler.is_idle() {
                self.sampler.step(&mut self.models);
            }
        }
        self.stop();
    }

    fn perform(&mut self, work: Work) {
        match work {
            Work::Barrier { model, seq } => {
                let Some((command, reply)) = self.inbox.barriers.remove(&(model.clone(), seq)) else { return };
                // The reply goes down with the panic, which fails its promise.
                if catch_unwind(AssertUnwindSafe(|| self.barrier(&model, seq, command, reply))).is_err() {
                    tracing::error!(run = %model, seq_id = seq, "a request panicked; its run is ended");
                    self.unload(&model);
                }
            }
            Work::Pass(pass) => {
                let mut requests = std::mem::take(&mut self.inbox.requests);
                let (inbox, sampler) = (&mut self.inbox, &mut self.sampler);
                let mut last = Instant::now();
                let mut breathe = |models: &mut Models| {
                    inbox.drain(models, sampler);
                    // As long for sampling as the layer took, so that both get half of the device.
                    let (share, start) = (last.elapsed(), Instant::now());
                    while !sampler.is_idle() && start.elapsed() < share {
                        sampler.step(models);
                    }
                    last = Instant::now();
                };
                train::run_pass(&mut self.models, &mut requests, pass, self.budget, &mut breathe);
                // What arrived meanwhile went into the empty map.
                requests.extend(self.inbox.requests.drain());
                self.inbox.requests = requests;
                self.inbox.fail_orphans();
            }
        }
    }

    fn barrier(&mut self, model: &ModelId, seq: u64, command: RunCommand, reply: Reply) {
        let kernels = self.models.kernels;
        let result = match command {
            RunCommand::OptimStep(params) => match self.models.run_mut(model) {
                Some(run) => {
                    let start = Instant::now();
                    let stepped = train::optim_step(run, kernels, &params);
                    self.models.meter.spent(start.elapsed(), vec![(Consumer::Run(model.clone()), 1)]);
                    stepped
                }
                None => Err(lost(model)),
            },
            RunCommand::Save(Save::Snapshot { sampler }) => {
                self.models.snapshot(model, &sampler).map(|()| Outcome::Saved { size_bytes: 0 })
            }
            RunCommand::Save(save) => return self.save(model, &save, reply),
            RunCommand::Load(restore) => self.models.load_into(model, &restore).map(|()| Outcome::Loaded),
            RunCommand::Unload => {
                self.unload(model);
                Ok(Outcome::Unloaded)
            }
            RunCommand::Create { .. } | RunCommand::ForwardBackward { .. } => {
                Err(Error::server("not a barrier of a run"))
            }
        };
        if let Err(e) = &result {
            tracing::info!(run = %model, seq_id = seq, error = %e, "request failed");
        }
        reply(result);
    }

    /// Copies the weights now, and writes them while training goes on.
    fn save(&mut self, model: &ModelId, save: &Save, reply: Reply) {
        let Some(run) = self.models.run(model) else { return reply(Err(lost(model))) };
        let write = weights::begin_save(run, save);
        self.writers.retain(|w| !w.is_finished());
        // Each holds a copy of a run in memory until it is written.
        if self.writers.len() >= WRITERS {
            let _ = self.writers.remove(0).join();
        }
        self.writers.push(std::thread::spawn(move || {
            reply(write().map(|size_bytes| Outcome::Saved { size_bytes }));
        }));
    }

    fn unload(&mut self, model: &ModelId) {
        self.models.unload(model);
        self.inbox.forget(model);
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
            }
        }
    }

    fn stop(mut self) {
        let error = Error::server("the server is shutting down");
        self.sampler.cancel(&error, |_| true);
        self.inbox.fail_all(&error);
        for w in self.writers {
            let _ = w.join();
        }
        if let Some(stopped) = self.inbox.stopped {
            stopped();
        }
    }
}

impl Inbox {
    /// Takes what has arrived, without waiting.
    fn drain(&mut self, models: &mut Models, sampler: &mut Sampler) {
        while let Ok(m) = self.rx.try_recv() {
            self.take(m, models, sampler);
        }
    }

    /// A panic here ends the one request: its reply goes down with it, which fails its promise.
    fn take(&mut self, message: Message, models: &mut Models, sampler: &mut Sampler) {
        if catch_unwind(AssertUnwindSafe(|| self.accept(message, models, sampler))).is_err() {
            tracing::error!("a request panicked when it was taken in");
        }
    }

    fn accept(&mut self, message: Message, models: &mut Models, sampler: &mut Sampler) {
        match message {
            Message::Shutdown(stopped) => self.stopped = Some(stopped),
            Message::Skip { model, seq } => self.scheduler.skip(&model, seq),
            Message::Cancel(promise) => {
                sampler.cancel(&Error::user("the request was cancelled"), |o| o.promise == promise)
            }
            Message::EndSession(session) => {
                sampler.cancel(&Error::user("its session has ended"), |o| o.session == session);
                models.drop_snapshots(&session);
            }
            Message::Submit(submission) => match *submission {
                Submission { command: Command::Sample { origin, request }, reply, events } => {
                    sampler.submit(models, origin, request, reply, events);
                }
                Submission { command: Command::Run { model, seq, command }, reply, .. } => {
                    self.run_command(model, seq, command, reply, models);
                }
            },
        }
    }

    fn run_command(&mut self, model: ModelId, seq: u64, command: RunCommand, reply: Reply, models: &mut Models) {
        if let RunCommand::Create { base, kind, restore } = &command {
            let created = if self.scheduler.is_open(&model) {
                Err(Error::user(format!("run {model} exists already")))
            } else {
                models.create(&model, base, *kind, restore.as_ref())
            };
            if created.is_ok() {
                self.scheduler.open(model, 1);
            }
            return reply(created.map(|()| Outcome::Created));
        }
        if seq == NOW {
            models.unload(&model);
            self.forget(&model);
            return reply(Ok(Outcome::Unloaded));
        }
        if let Err(e) = self.queue(&model, seq, &command, models) {
            self.scheduler.skip(&model, seq);
            return reply(Err(e));
        }
        let key = (model, seq);
        match command {
            RunCommand::ForwardBackward { data, loss, forward_only } => {
                self.requests.insert(key, Request::new(data, loss, forward_only, reply));
            }
            command => {
                self.barriers.insert(key, (command, reply));
            }
        }
    }

    fn queue(&mut self, model: &ModelId, seq: u64, command: &RunCommand, models: &Models) -> Result<()> {
        let run = models.run(model).ok_or_else(|| lost(model))?;
        let job = match command {
            RunCommand::ForwardBackward { data, forward_only, .. } => {
                self.admit(data, run, *forward_only)?;
                Job::Data {
                    lane: Lane { weights: run.lane, forward_only: *forward_only },
                    tokens: data.iter().map(|d| d.tokens.len()).collect(),
                }
            }
            _ => Job::Barrier,
        };
        if self.scheduler.push(model, seq, job) {
            return Ok(());
        }
        Err(Error::user(format!("seq_id {seq} of run {model} was used already, or lies too far ahead of the last one")))
    }

    /// Refuses a datum that memory could not hold in a training pass.
    fn admit(&self, data: &[Datum], run: &Run, forward_only: bool) -> Result<()> {
        let longest = memory::longest_datum(run.base.config(), self.activations);
        match data.iter().position(|d| d.tokens.len() > longest) {
            Some(i) if !forward_only => Err(Error::user(format!(
                "datum {i}: {} tokens are more than this server's memory can train on at once; at most {longest}",
                data[i].tokens.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Fails what waits of a run that ended.
    fn forget(&mut self, model: &ModelId) {
        for seq in self.scheduler.close(model) {
            let key = (model.clone(), seq);
            if let Some(r) = self.requests.remove(&key) {
                (r.reply)(Err(lost(model)));
            }
            if let Some((_, reply)) = self.barriers.remove(&key) {
                reply(Err(lost(model)));
            }
        }
    }

    /// Fails requests whose run ended while a pass worked on them.
    fn fail_orphans(&mut self) {
        let scheduler = &self.scheduler;
        for ((model, _), r) in self.requests.extract_if(|(model, _), _| !scheduler.is_open(model)) {
            (r.reply)(Err(lost(&model)));
        }
    }

    fn fail_all(&mut self, error: &Error) {
        self.requests.drain().for_each(|(_, r)| (r.reply)(Err(error.clone())));
        self.barriers.drain().for_each(|(_, (_, reply))| reply(Err(error.clone())));
        while let Ok(m) = self.rx.try_recv() {
            if let Message::Submit(s) = m {
                (s.reply)(Err(error.clone()));
            }
        }
    }
}
