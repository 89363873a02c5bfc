//! After a restart: answers are there again, runs go on from their last state, and what was not answered is done.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;

use crate::accounts::runs::LiveRun;
use crate::command::{Command, Fault, Outcome, RunCommand, Save};
use crate::engine::handle::{Asleep, Keeper};
use crate::engine::keep;
use crate::error::{Error, Result};
use crate::ids::{ModelId, OwnerId, SamplerId, SessionId};
use crate::store::runs::RunRow;

use super::Futures;
use super::complete::{Completion, Guard};
use super::issue::Key;
use super::journal::{kind, known_kind};
use super::leftovers::{remove_others, set_aside};
use super::records::{Accepted, Answered};
use super::restored::{Restored, RestoredRun};
use super::state::Answer;

/// A session that was heard later is likely to go on: its runs are read at once.
const SILENCE: Duration = Duration::from_secs(120);

impl Futures {
    /// Takes up what an earlier process left. → the runs whose creation is under way, which have no row yet.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn revive(&self, restored: Restored, runs_dir: &Path) -> Result<Vec<RunRow>> {
        let Restored { answers, open, orphans, mut runs, ended } = restored;
        let replay = Replay::new();
        answers.into_iter().for_each(|answered| self.tell_again(answered));
        for orphan in orphans {
            let model = super::ledger::place(&orphan.key).map(|(model, _)| model);
            self.fail(orphan, Error::user(format!("run {} has ended", model.unwrap_or(ModelId(String::new())))));
        }
        // Of a run that nobody asked anything since its state, nothing is in the ledger.
        let on_disk = keep::found(runs_dir).into_iter().filter(|model| !ended.contains(model));
        on_disk.for_each(|model| {
            runs.entry(model).or_default();
        });
        let (mut alive, mut begun, mut dormant) = (Vec::new(), Vec::new(), Vec::new());
        for (model, run) in runs {
            if !self.goes_on(&session_of(&model.0)).await? {
                self.end_restored(&model, run);
                continue;
            }
            match self.ready(&model, run, runs_dir).await? {
                Some(ready) if self.serves(&ready) => alive.push(ready),
                Some(ready) => dormant.push(ready.model),
                None => continue,
            }
        }
        let kept: HashSet<String> = alive.iter().map(|r| &r.model).chain(&dormant).map(ModelId::dir_name).collect();
        remove_others(runs_dir, &kept);
        self.engine.expect(alive.iter().flat_map(Ready::snapshots).collect());
        let numbers: HashMap<ModelId, u64> = alive.iter().map(|r| (r.model.clone(), r.end())).collect();
        for ready in alive {
            if let Some(asleep) = self.may_sleep(&ready).await? {
                self.begin_run(&ready.model, &ready.row);
                self.engine.leave_asleep(asleep);
                continue;
            }
            begun.extend(ready.unlisted());
            self.go_on(ready, &replay).await;
        }
        for (_, accepted) in open {
            match unloads(&accepted) {
                Some(model) => match numbers.get(&model) {
                    // Behind what is done again, so that snapshots of it are there.
                    Some(next) => self.submit_open(at_its_end(accepted, *next)),
                    None => self.settle_restored(accepted, Ok(Answer::Unloaded { model })),
                },
                None if self.goes_on(&sampled_by(&accepted)).await? => self.submit_open(accepted),
                None => self.fail(accepted, Error::user("its session has ended")),
            }
        }
        Ok(begun)
    }

    async fn goes_on(&self, session: &SessionId) -> Result<bool> {
        Ok(self.store.session(session).await?.is_some_and(|s| s.finished.is_none()))
    }

    /// Finds a run's state and whether everything since is known. `None` when it cannot go on, which was told.
    async fn ready(&self, model: &ModelId, run: RestoredRun, runs_dir: &Path) -> Result<Option<Ready>> {
        let unlisted = run.requests.get(&0).and_then(|first| match &first.completion {
            Completion::Create { row, .. } => Some(row.clone()),
            _ => None,
        });
        let Some(row) = self.store.run(model).await?.or(unlisted) else {
            self.end_restored(model, run);
            return Ok(None);
        };
        let (dir, name) = (runs_dir.to_owned(), model.clone());
        let found = tokio::task::spawn_blocking(move || keep::newest(&dir, &name)).await;
        let (state, damaged) = found.map_err(|e| Error::server(format!("looking for a run's state: {e}")))?;
        damaged.iter().for_each(|e| tracing::error!(run = %model, "{e}"));
        let next = state.as_ref().map_or(0, |(next, _)| *next);
        let lost = match (run.hole(next), damaged.first()) {
            (_, Some(e)) => Some(e.message.clone()),
            (Some(seq), None) => Some(format!("the journal lost its request with seq_id {seq}")),
            (None, None) if state.is_none() && !run.requests.contains_key(&0) => Some("its state is missing".into()),
            (None, None) => None,
        };
        if let Some(why) = lost {
            self.give_up(model, run, &why).await;
            set_aside(&runs_dir.join(model.dir_name()));
            return Ok(None);
        }
        Ok(Some(Ready { model: model.clone(), row, run, state }))
    }

    /// Whether its base model is served. If not, those who wait are told; a start that serves it goes on.
    fn serves(&self, ready: &Ready) -> bool {
        let (model, base) = (&ready.model, &ready.row.base_model);
        if self.engine.model(base).is_some() {
            return true;
        }
        tracing::warn!(run = %model, base, "its base model is not served; it waits for a start that does");
        let why = format!("base model {base} of run {model} is no longer served here; start with --model {base}=DIR");
        ready.run.open().for_each(|accepted| self.settle_in_memory(accepted, Error::user(why.clone())));
        false
    }

    /// Gives the engine a run's state and everything that was asked since.
    async fn go_on(&self, ready: Ready, replay: &Arc<Replay>) {
        let Ready { model, row, mut run, state } = ready;
        self.begin_run(&model, &row);
        let next = state.as_ref().map_or(0, |(next, _)| *next);
        let (first, last) = (if state.is_some() { next } else { 0 }, run.last());
        let again = (next..=last).filter(|seq| run.answered.contains_key(seq)).count();
        tracing::info!(run = %model, next, repeated = again, "run goes on");
        let earlier: Vec<u64> = run.open().map(|a| a.1).filter(|seq| *seq < first).collect();
        for seq in earlier {
            // Its effect is in the state; only its answer was not written.
            let accepted = run.requests.remove(&seq).expect("just seen");
            self.answer_again(accepted).await;
        }
        if let Some((next, state)) = state {
            let revive = RunCommand::Revive { base: row.base_model.clone(), kind: row.kind, state };
            self.repeat(row.owner.clone(), (&model, next - 1), revive, replay);
        }
        for seq in first..=last {
            let Some(accepted) = run.requests.remove(&seq) else {
                if run.skips(seq) {
                    self.engine.skip(model.clone(), seq);
                }
                continue;
            };
            if !run.answered.contains_key(&seq) {
                self.submit_open(accepted);
            } else if seq == 0 || run.repeats(seq, &accepted.command) {
                let Command::Run { owner, command, .. } = accepted.command else { continue };
                // A step that was refused dropped the gradient.
                let refused = matches!(command, RunCommand::OptimStep(_)) && run.answered.get(&seq) == Some(&false);
                let command = if refused { RunCommand::DropGradient } else { command };
                self.repeat(owner, (&model, seq), command, replay);
            } else {
                self.engine.skip(model.clone(), seq);
            }
        }
    }

    fn begin_run(&self, model: &ModelId, row: &RunRow) {
        let live =
            LiveRun { owner: row.owner.clone(), session: row.session.clone(), base_model: row.base_model.clone() };
        let _ = self.runs.begin(model, live, None);
    }

    /// A run of a silent session of which nothing is to be done stays out of memory.
    async fn may_sleep(&self, ready: &Ready) -> Result<Option<Asleep>> {
        let Some((next, state)) =
            ready.state.clone().filter(|(next, _)| ready.run.last() < *next && ready.run.open().next().is_none())
        else {
            return Ok(None);
        };
        let session = self.store.session(&ready.row.session).await?;
        let silence = session.and_then(|s| (Utc::now() - s.last_heartbeat_at).to_std().ok());
        let RunRow { owner, base_model: base, kind, .. } = ready.row.clone();
        let asleep = Asleep { model: ready.model.clone(), owner, base, kind, next, state };
        Ok(silence.is_some_and(|s| s >= SILENCE).then_some(asleep))
    }

    /// Does something again whose answer is known.
    fn repeat(&self, owner: OwnerId, (model, seq): (&ModelId, u64), command: RunCommand, replay: &Arc<Replay>) {
        let (futures, name, replay) = (self.clone(), model.clone(), replay.clone());
        let command = Command::Run { owner, model: model.clone(), seq, command };
        let reply = move |outcome: Result<Outcome>| {
            // The end of the server breaks off what is done again; the next start does it.
            if let Err(e) = outcome
                && !*futures.closing.borrow()
            {
                tracing::error!(run = %name, seq_id = seq, error = %e, "the run cannot go on where it was");
                futures.broken(&name, &e.message);
            }
            drop(replay);
        };
        self.engine.submit(command, Box::new(reply));
    }

    /// A request whose promise was given, but not kept.
    fn submit_open(&self, accepted: Accepted) {
        let Accepted { id, owner, key, meaning, command, completion } = accepted;
        self.lock().insert(id.clone(), owner, (kind(&completion), key.clone()), meaning);
        let guard = Guard::new(self.clone(), id.clone(), &key, &command, completion, None);
        let ticket = self.engine.submit(command, Box::new(move |outcome| guard.reply(outcome)));
        if let Some(promise) = self.lock().promises.get_mut(&id) {
            promise.ticket = Some(ticket);
        }
    }

    /// Answers a request whose effect is in its run's state.
    async fn answer_again(&self, accepted: Accepted) {
        let lost = Error::server("the request was done, but its answer is lost");
        let outcome = match &accepted.completion {
            Completion::Create { .. } => Outcome::Created,
            Completion::Load { .. } => Outcome::Loaded,
            _ => return self.fail(accepted, lost),
        };
        let Accepted { id, owner, key, meaning, completion, .. } = accepted;
        self.lock().insert(id.clone(), owner, (kind(&completion), key), meaning);
        let result = match completion {
            Completion::Create { .. } => completion.record(&outcome, self).await,
            completion => completion.answer(outcome),
        };
        self.settle(&id, result);
    }

    fn end_restored(&self, model: &ModelId, run: RestoredRun) {
        self.ledger.ended(model);
        run.into_open().for_each(|accepted| self.fail(accepted, Error::user(format!("run {model} has ended"))));
    }

    /// A run that cannot go on: everybody who waits is told, and its row says so.
    async fn give_up(&self, model: &ModelId, run: RestoredRun, why: &str) {
        let told = unusable(model, why);
        tracing::error!(run = %model, "{told}");
        if let Err(e) = self.store.mark_run(model, Some(&lost_at(model, why))).await {
            tracing::warn!(run = %model, error = %e, "the run is not marked");
        }
        self.ledger.ended(model);
        run.into_open().for_each(|accepted| self.fail(accepted, Error::server(told.clone())));
    }

    /// A run that turned out not to be what it was.
    fn broken(&self, model: &ModelId, why: &str) {
        let told = unusable(model, why);
        tracing::error!(run = %model, "{told}");
        let (futures, model, fault) = (self.clone(), model.clone(), lost_at(model, why));
        self.runtime.spawn(async move {
            if let Err(e) = futures.store.mark_run(&model, Some(&fault)).await {
                tracing::warn!(run = %model, error = %e, "the run is not marked");
            }
            if let Ok(Some(row)) = futures.store.run(&model).await {
                futures.unload(row.owner, model);
            }
        });
    }

    /// An answer of an earlier process.
    fn tell_again(&self, answered: Answered) {
        let Answered { id, owner, kind, key, meaning, began, ended, result } = answered;
        let old = (Utc::now() - ended).to_std().is_ok_and(|age| age > self.retention.time);
        let Some(kind) = known_kind(&kind).filter(|_| !old) else { return self.ledger.forget(&id) };
        let mut table = self.lock();
        table.insert(id.clone(), owner, (kind, key), meaning);
        if let Some(promise) = table.promises.get_mut(&id) {
            promise.began = began;
        }
        table.settle(&id, result, self.retention.bytes);
        let gone = std::mem::take(&mut table.gone);
        drop(table);
        gone.iter().for_each(|id| self.ledger.forget(id));
    }

    fn fail(&self, accepted: Accepted, error: Error) {
        self.settle_restored(accepted, Err(error));
    }

    fn settle_restored(&self, accepted: Accepted, result: Result<Answer>) {
        let Accepted { id, owner, key, meaning, completion, .. } = accepted;
        self.lock().insert(id.clone(), owner, (kind(&completion), key), meaning);
        self.settle(&id, result);
    }

    fn settle_in_memory(&self, (accepted, _): (&Accepted, u64), error: Error) {
        let mut table = self.lock();
        let of = (kind(&accepted.completion), accepted.key.clone());
        table.insert(accepted.id.clone(), accepted.owner.clone(), of, accepted.meaning);
        table.settle(&accepted.id, Err(error), self.retention.bytes);
    }
}

fn unusable(model: &ModelId, why: &str) -> String {
    format!("run {model} cannot go on after the restart: {why}; create a new run from its last checkpoint")
}

/// The mark of a run that did not survive a restart.
fn lost_at(model: &ModelId, why: &str) -> Fault {
    Fault { seq_id: 0, datum: 0, reason: unusable(model, why) }
}

/// A run that can go on.
struct Ready {
    model: ModelId,
    row: RunRow,
    run: RestoredRun,
    /// Its state, and the number that comes next; none = from its creation on.
    state: Option<(u64, PathBuf)>,
}

impl Ready {
    /// The samplers whose snapshots will be made again.
    fn snapshots(&self) -> Vec<SamplerId> {
        let next = self.state.as_ref().map_or(0, |(next, _)| *next);
        let later = self.run.requests.range(next..);
        let again =
            later.filter(|(seq, a)| !self.run.answered.contains_key(seq) || self.run.repeats(**seq, &a.command));
        let of = |command: &Command| match command {
            Command::Run {
                command: RunCommand::Save(Save::Snapshot { sampler } | Save::Inflight { sampler }), ..
            } => Some(sampler.clone()),
            _ => None,
        };
        again.filter_map(|(_, a)| of(&a.command)).collect()
    }

    /// The number behind all that is known of it.
    fn end(&self) -> u64 {
        self.state.as_ref().map_or(1, |(next, _)| *next).max(self.run.last() + 1)
    }

    /// Its row, when that is only written after its creation.
    fn unlisted(&self) -> Option<RunRow> {
        (self.run.requests.contains_key(&0) && !self.run.answered.contains_key(&0)).then(|| self.row.clone())
    }
}

impl RestoredRun {
    /// Requests that were not answered, with their numbers.
    fn open(&self) -> impl Iterator<Item = (&Accepted, u64)> {
        self.requests.iter().filter(|(seq, _)| !self.answered.contains_key(seq)).map(|(seq, a)| (a, *seq))
    }

    fn into_open(self) -> impl Iterator<Item = Accepted> {
        let Self { requests, answered, .. } = self;
        requests.into_iter().filter(move |(seq, _)| !answered.contains_key(seq)).map(|(_, a)| a)
    }
}

/// Says when everything that was done before is done again.
struct Replay(std::time::Instant);

impl Replay {
    fn new() -> Arc<Self> {
        tracing::debug!(target: "tinderbox::durability", moment = "replay", "replay begins");
        Arc::new(Self(std::time::Instant::now()))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let seconds = self.0.elapsed().as_secs_f64();
        tracing::debug!(target: "tinderbox::durability", moment = "replayed", seconds, "replay ends");
    }
}

/// The unloading of a run, in the run's order.
fn at_its_end(accepted: Accepted, next: u64) -> Accepted {
    let command = match accepted.command {
        Command::Run { owner, model, command, .. } => Command::Run { owner, model, seq: next, command },
        sample => sample,
    };
    Accepted { command, ..accepted }
}

fn unloads(accepted: &Accepted) -> Option<ModelId> {
    match &accepted.key {
        Key::Unload { model } => Some(model.clone()),
        _ => None,
    }
}

fn session_of(id: &str) -> SessionId {
    SessionId(id.split(':').next().unwrap_or_default().into())
}

fn sampled_by(accepted: &Accepted) -> SessionId {
    match &accepted.command {
        Command::Sample { origin, .. } => origin.session.clone(),
        Command::Run { model, .. } => session_of(&model.0),
    }
}
