//! What has arrived at the engine's thread, and what has been made of it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::command::{Command, Datum, Origin, RunCommand, RunKind, SampleSource, Save};
use crate::engine::asleep::Drowsy;
use crate::engine::handle::{Asleep, Message, NOW, Reply, Stopped, Submission};
use crate::engine::load::{Board, Load};
use crate::engine::memory;
use crate::engine::models::{Base, Models, Plan, lost};
use crate::engine::sample::Sampler;
use crate::engine::train::{Request, Requests};
use crate::error::{Error, Result};
use crate::ids::{ModelId, OwnerId, SamplerId};
use crate::scheduler::{Lane, Queued, Scheduler, Shares};

/// How old the published picture of the queues may get while the engine works.
const PICTURE_AGE: Duration = Duration::from_millis(100);

/// Messages, and what has been made of them.
pub struct Inbox {
    pub rx: Receiver<Message>,
    pub scheduler: Scheduler,
    pub shares: Shares,
    pub requests: Requests,
    /// Commands that are barriers of their run, by run and number.
    pub barriers: HashMap<(ModelId, u64), (RunCommand, Reply)>,
    /// Runs whose creation waits.
    pub plans: HashMap<ModelId, Plan>,
    /// Values of activations a training pass may keep.
    pub activations: usize,
    /// Called when everything has ended; set once the engine is told to stop.
    pub stopped: Option<Stopped>,
    pub board: Board,
    pub published: Instant,
    pub writers_busy: bool,
    /// Runs that have ended, whose files are to go, and who waits for that.
    pub unloaded: Vec<(ModelId, Option<Reply>)>,
    /// Runs that are to leave memory, those on their way, and those that have.
    pub sleepy: Vec<ModelId>,
    pub drowsy: HashMap<ModelId, Drowsy>,
    pub asleep: HashMap<ModelId, Asleep>,
    /// Runs that are to go back to their last state, between two pieces of work.
    pub rollbacks: Vec<(ModelId, Reply)>,
    /// Samples that wait for a snapshot that is to be made again.
    pub expected: HashMap<SamplerId, Vec<Submission>>,
}

impl Inbox {
    /// Takes what has arrived, without waiting.
    pub fn drain(&mut self, models: &mut Models, sampler: &mut Sampler) {
        while let Ok(m) = self.rx.try_recv() {
            self.take(m, models, sampler);
        }
    }

    /// A panic here ends the one request: its reply goes down with it, which fails its promise.
    pub fn take(&mut self, message: Message, models: &mut Models, sampler: &mut Sampler) {
        if catch_unwind(AssertUnwindSafe(|| self.accept(message, models, sampler))).is_err() {
            tracing::error!("a request panicked when it was taken in");
        }
    }

    fn accept(&mut self, message: Message, models: &mut Models, sampler: &mut Sampler) {
        match message {
            Message::Shutdown(stopped) => self.stopped = Some(stopped),
            Message::Skip { model, seq } => self.scheduler.skip(&model, seq),
            Message::Cancel(promise) => {
                let error = Error::user("the request was cancelled");
                self.cancel_awaiting(&error, |o| o.promise == promise);
                sampler.cancel(&error, |o| o.promise == promise)
            }
            Message::EndSession(session) => {
                let error = Error::user("its session has ended");
                self.cancel_awaiting(&error, |o| o.session == session);
                sampler.cancel(&error, |o| o.session == session);
                models.drop_snapshots(&session);
            }
            Message::FellSilent(session, runs) => {
                let error = Error::user("its session fell silent; what waited was cancelled");
                self.cancel_awaiting(&error, |o| o.session == session);
                sampler.cancel(&error, |o| o.session == session);
                self.sleepy.extend(runs);
            }
            Message::Asleep(run) => {
                self.asleep.insert(run.model.clone(), *run);
            }
            Message::Expect(snapshots) => {
                self.expected.extend(snapshots.into_iter().map(|id| (id, Vec::new())));
            }
            Message::Submit(submission) if self.awaited(&submission.command).is_some() => {
                self.awaited(&submission.command).expect("just seen").push(*submission);
            }
            Message::Submit(submission) => match *submission {
                Submission { command: Command::Sample { origin, request }, ticket, reply, events } => {
                    self.arrive(&origin.owner, sampler);
                    sampler.submit(models, (origin, ticket), request, reply, events);
                }
                Submission { command: Command::Run { owner, model, seq, command }, reply, .. } => {
                    self.arrive(&owner, sampler);
                    self.run_command((owner, model, seq), command, reply, models);
                }
            },
            Message::Weights(weights) => self.shares.set_weights(weights),
        }
    }

    /// Where a sample waits whose snapshot is yet to be made again.
    fn awaited(&mut self, command: &Command) -> Option<&mut Vec<Submission>> {
        let Command::Sample { request, .. } = command else { return None };
        let SampleSource::Snapshot(id) = &request.source else { return None };
        self.expected.get_mut(id)
    }

    /// The snapshot is there, or never will be: what waited for it goes on.
    pub fn arrived(&mut self, id: &SamplerId, models: &mut Models, sampler: &mut Sampler) {
        for waiting in self.expected.remove(id).into_iter().flatten() {
            self.take(Message::Submit(Box::new(waiting)), models, sampler);
        }
    }

    fn cancel_awaiting(&mut self, error: &Error, gone: impl Fn(&Origin) -> bool) {
        let of_gone = |s: &mut Submission| matches!(&s.command, Command::Sample { origin, .. } if gone(origin));
        for waiting in self.expected.values_mut() {
            waiting.extract_if(.., |s| of_gone(s)).for_each(|s| (s.reply)(Err(error.clone())));
        }
    }

    /// An owner who had nothing to do starts where the others are.
    fn arrive(&mut self, owner: &OwnerId, sampler: &Sampler) {
        if !self.scheduler.has(owner) && !sampler.has(owner) {
            self.shares.arrive(owner);
        }
    }

    fn run_command(
        &mut self,
        (owner, model, seq): (OwnerId, ModelId, u64),
        command: RunCommand,
        reply: Reply,
        models: &mut Models,
    ) {
        if let Some((base, kind)) = begins(&command) {
            if self.scheduler.is_open(&model) {
                return reply(Err(Error::user(format!("run {model} exists already"))));
            }
            // Creating takes its turn like everything else: it may have to read a checkpoint.
            match models.plan(base, kind) {
                Ok(plan) => self.plans.insert(model.clone(), plan),
                Err(e) => return reply(Err(e)),
            };
            self.scheduler.open(model.clone(), owner, seq);
            self.scheduler.push(&model, seq, Queued::Barrier);
            self.barriers.insert((model, seq), (command, reply));
            return;
        }
        if let RunCommand::RollBack = command {
            return self.rollbacks.push((model, reply));
        }
        if seq == NOW {
            models.unload(&model);
            self.drowsy.remove(&model);
            self.asleep.remove(&model);
            self.forget(&model);
            // Answered when its files are gone, and snapshots of it are in theirs.
            return self.unloaded.push((model, Some(reply)));
        }
        let queued = self.wake(&model, models).and_then(|()| self.queue(&model, seq, &command, models));
        if let Err(e) = queued {
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
        let planned = || self.plans.get(model).map(|p| (&p.base, p.lane));
        let run = models.run(model).map(|r| (&r.base, r.lane)).or_else(planned);
        let (base, weights) = run.ok_or_else(|| lost(model))?;
        let queued = match command {
            RunCommand::ForwardBackward { data, forward_only, .. } => {
                self.admit(data, base, *forward_only)?;
                let lane = Lane { weights, forward_only: *forward_only };
                Queued::Data { lane, tokens: data.iter().map(|d| d.tokens.len()).collect() }
            }
            RunCommand::Save(Save::Training { .. } | Save::Sampler { .. } | Save::External { .. }) => Queued::Save,
            _ => Queued::Barrier,
        };
        if self.scheduler.push(model, seq, queued) {
            return Ok(());
        }
        Err(Error::user(format!("seq_id {seq} of run {model} was used already, or lies too far ahead of the last one")))
    }

    /// Refuses a datum that memory could not hold in a training pass.
    fn admit(&self, data: &[Datum], base: &Base, forward_only: bool) -> Result<()> {
        let longest = memory::longest_datum(base.config(), self.activations);
        match data.iter().position(|d| d.tokens.len() > longest) {
            Some(i) if !forward_only => Err(Error::user(format!(
                "datum {i}: {} tokens are more than this server's memory can train on at once; at most {longest}",
                data[i].tokens.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Fails what waits of a run that ended.
    pub fn forget(&mut self, model: &ModelId) {
        self.plans.remove(model);
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
    pub fn fail_orphans(&mut self) {
        let scheduler = &self.scheduler;
        for ((model, _), r) in self.requests.extract_if(|(model, _), _| !scheduler.is_open(model)) {
            (r.reply)(Err(lost(&model)));
        }
    }

    pub fn fail_all(&mut self, error: &Error) {
        self.cancel_awaiting(error, |_| true);
        self.requests.drain().for_each(|(_, r)| (r.reply)(Err(error.clone())));
        self.barriers.drain().for_each(|(_, (_, reply))| reply(Err(error.clone())));
        while let Ok(m) = self.rx.try_recv() {
            if let Message::Submit(s) = m {
                (s.reply)(Err(error.clone()));
            }
        }
    }

    /// Leaves a picture of the queues for others to look at, unless the last one is new enough.
    pub fn publish(&mut self, sampler: &Sampler, at_once: bool) {
        if !at_once && self.published.elapsed() < PICTURE_AGE {
            return;
        }
        self.published = Instant::now();
        let mut load = Load { writers_busy: self.writers_busy, ..Load::default() };
        for (model, owner, place) in self.scheduler.places() {
            load.owners.entry(owner.clone()).or_default().training += place.waiting;
            load.runs.insert(model.clone(), place);
        }
        sampler.tell_load(&mut load, &self.shares);
        let mut order: Vec<OwnerId> = load.owners.keys().cloned().collect();
        order.sort_by(|a, b| self.shares.order(a, b));
        for (ahead, owner) in order.iter().enumerate() {
            let one = load.owners.get_mut(owner).expect("one of its keys");
            (one.ahead, one.seconds, one.weight) = (ahead, self.shares.seconds(owner), self.shares.weight(owner));
        }
        self.board.publish(load);
    }
}

/// What a command that begins a run trains, and over which base model.
fn begins(command: &RunCommand) -> Option<(&str, RunKind)> {
    match command {
        RunCommand::Create { base, kind, .. } | RunCommand::Revive { base, kind, .. } => Some((base, *kind)),
        _ => None,
    }
}
