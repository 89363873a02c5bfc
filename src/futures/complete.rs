//! From the engine's outcome to a settled promise; rows are written before anybody can see the result.

use chrono::{TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::accounts::tally::Tally;
use crate::command::{Command, Outcome, TargetLayout};
use crate::engine::meter::{Consumer, Spent};
use crate::error::{Error, Result};
use crate::ids::{CheckpointPath, ModelId, RequestId};
use crate::store::checkpoints::CheckpointRow;
use crate::store::patience::Patience;
use crate::store::runs::RunRow;
use crate::store::samplers::SamplerRow;
use crate::store::usage::Counters;

use super::Futures;
use super::admission::Permit;
use super::discard::remove;
use super::explain::{Reading, explain};
use super::issue::Key;
use super::state::Answer;

/// What remains to be done when the engine has answered.
#[derive(Serialize, Deserialize)]
pub enum Completion {
    /// List the new run; `path` is the checkpoint it was created from.
    Create {
        row: RunRow,
        path: Option<CheckpointPath>,
    },
    ForwardBackward,
    OptimStep,
    /// List the new checkpoint; its time, size and expiry are filled in.
    Save {
        row: CheckpointRow,
        ttl: Option<TimeDelta>,
        overwrite: bool,
    },
    /// List the sampler of a snapshot.
    Snapshot(SamplerRow),
    Load {
        model: ModelId,
        path: CheckpointPath,
    },
    Unload {
        model: ModelId,
    },
    /// `path` is the checkpoint that is sampled from.
    Sample {
        targets: Option<TargetLayout>,
        path: Option<CheckpointPath>,
    },
}

/// Holds a promise until its outcome is known. If it is dropped before, the promise fails instead of staying
/// pending for ever.
pub(super) struct Guard {
    futures: Futures,
    id: RequestId,
    completion: Option<Completion>,
    reading: Option<Reading>,
    tally: Tally,
    consumer: Option<Consumer>,
    /// What it took, once that is known.
    took: Counters,
    /// A run that is there only if this succeeds.
    creates: Option<ModelId>,
    /// Its room is free when the promise is settled.
    _permit: Option<Permit>,
    settled: bool,
}

impl Guard {
    pub(super) fn new(
        futures: Futures,
        id: RequestId,
        key: &Key,
        command: &Command,
        completion: Completion,
        permit: Option<Permit>,
    ) -> Self {
        let reading = Reading::of(command, &completion);
        let (sampler, consumer) = match (key, command) {
            (Key::Sample { sampler, .. }, Command::Sample { origin, .. }) => {
                (Some(sampler), Some(Consumer::Sample(origin.promise.clone())))
            }
            (_, Command::Run { model, .. }) => (None, Some(Consumer::Run(model.clone()))),
            _ => (None, None),
        };
        let tally = Tally::of(command, sampler, &futures.runs);
        let creates = match &completion {
            Completion::Create { row, .. } => Some(row.id.clone()),
            _ => None,
        };
        let took = Counters::default();
        let completion = Some(completion);
        Self { futures, id, completion, reading, tally, consumer, took, creates, _permit: permit, settled: false }
    }

    /// Called on the engine's thread: never blocks. What needs the store goes on in the runtime.
    pub(super) fn reply(mut self, outcome: Result<Outcome>) {
        let Some(completion) = self.completion.take() else { return };
        if let Ok(outcome) = &outcome {
            self.took = self.tally.with(outcome);
        }
        match (completion, outcome) {
            (_, Err(e)) => {
                let told = explain(e, self.reading.as_ref(), &self.futures.data_dir);
                self.settle(Err(told));
            }
            (completion, Ok(outcome)) if completion.needs_store() => {
                let runtime = self.futures.runtime.clone();
                runtime.spawn(async move {
                    let result = completion.record(&outcome, &self.futures).await;
                    if result.is_err() {
                        completion.give_up().await;
                    }
                    self.settle(result);
                });
            }
            (completion, Ok(outcome)) => self.settle(completion.answer(outcome)),
        }
    }

    fn settle(mut self, result: Result<Answer>) {
        self.settled = true;
        self.count(result.is_ok());
        self.futures.settle(&self.id, result);
    }

    /// Notes what the request took; of one that failed or was cancelled, what the device had done for it.
    fn count(&mut self, succeeded: bool) {
        if let Some(model) = self.creates.take().filter(|_| !succeeded) {
            self.futures.runs.end(&model);
        }
        let trained = self.tally.trained();
        let spent = self.consumer.take().map(|consumer| self.futures.engine.take_spent(&consumer, trained));
        let spent = spent.unwrap_or_default();
        let took = if succeeded { self.took } else { self.tally.add_part(spent.trained_tokens, done(&spent)) };
        let took = Counters { device_micros: spent.time.as_micros() as u64, ..took };
        self.futures.took(&mut self.tally, took);
    }
}

/// The tokens the device worked on.
pub(super) fn done(spent: &Spent) -> Counters {
    Counters { prefill_tokens: spent.prompt_tokens, sampled_tokens: spent.drawn_tokens, ..Counters::default() }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.settled {
            self.count(false);
            let error = Error::server("the request was dropped without an answer: the engine failed or is stopping");
            self.futures.settle(&self.id, Err(error));
        }
    }
}

impl Completion {
    fn needs_store(&self) -> bool {
        matches!(self, Self::Create { .. } | Self::Save { .. } | Self::Snapshot(_))
    }

    /// The answer of a request that leaves nothing in the store.
    pub(super) fn answer(self, outcome: Outcome) -> Result<Answer> {
        match (self, outcome) {
            (Self::ForwardBackward, Outcome::ForwardBackward { outputs, metrics }) => {
                Ok(Answer::ForwardBackward { outputs, metrics })
            }
            (Self::OptimStep, Outcome::OptimStep { metrics }) => Ok(Answer::OptimStep { metrics }),
            (Self::Load { model, path }, Outcome::Loaded) => Ok(Answer::Loaded { model, path }),
            (Self::Unload { model }, Outcome::Unloaded) => Ok(Answer::Unloaded { model }),
            (Self::Sample { targets, .. }, Outcome::Sampled(output)) => Ok(Answer::Sampled { output, targets }),
            (_, outcome) => Err(mismatch(&outcome)),
        }
    }

    /// Writes what is to be listed. A database that is gone for a while is waited for, and what was written before the
    /// process was killed is not written again.
    pub(super) async fn record(&self, outcome: &Outcome, futures: &Futures) -> Result<Answer> {
        let mut patience = Patience::default();
        loop {
            match self.record_once(outcome, futures).await {
                Err(e) if patience.lasts(&e).await => {}
                done => return done,
            }
        }
    }

    async fn record_once(&self, outcome: &Outcome, futures: &Futures) -> Result<Answer> {
        let store = &futures.store;
        match (self, outcome) {
            (Self::Create { row, path }, Outcome::Created) => {
                if store.run(&row.id).await?.is_none_or(|listed| listed.session != row.session) {
                    store.insert_run(row).await?;
                }
                let from = path.as_ref().map(CheckpointPath::to_string);
                let what = json!({ "model_id": row.id.0, "base_model": row.base_model, "from": from });
                store.note(Some(&row.owner), "run_created", what);
                let model = row.id.clone();
                Ok(match path.clone() {
                    Some(path) => Answer::Loaded { model, path },
                    None => Answer::Created { model },
                })
            }
            (Self::Save { row, ttl, overwrite }, Outcome::Saved { size_bytes }) => {
                let created_at = Utc::now();
                let expires_at = ttl.map(|ttl| created_at + ttl);
                let row = CheckpointRow { size_bytes: *size_bytes, created_at, expires_at, ..row.clone() };
                let path = row.path.clone();
                let _one_at_a_time = futures.naming.lock().await;
                list(futures, &row, *overwrite).await?;
                let what = json!({ "tinker_path": path.to_string(), "model_id": path.run.0, "size_bytes": size_bytes });
                store.note(Some(&row.owner), "checkpoint_saved", what);
                Ok(Answer::Saved { path, size_bytes: *size_bytes })
            }
            (Self::Snapshot(row), Outcome::Saved { .. }) => {
                if store.sampler(&row.id).await?.is_none_or(|listed| listed.source != row.source) {
                    store.insert_sampler(row).await?;
                }
                Ok(Answer::Snapshot { sampler: row.id.clone() })
            }
            (_, outcome) => Err(mismatch(outcome)),
        }
    }

    /// The directory of a checkpoint that could not be listed goes.
    async fn give_up(&self) {
        if let Self::Save { row, .. } = self {
            remove(&row.dir).await;
        }
    }
}

/// Make the checkpoint visible, in the place of one of the same name.
async fn list(futures: &Futures, row: &CheckpointRow, overwrite: bool) -> Result<()> {
    let store = &futures.store;
    futures.check_disk(&row.owner, &row.path, row.size_bytes).await?;
    let replaced = store.checkpoint(&row.path).await?;
    // The same files were listed before the process was killed.
    if replaced.as_ref().is_some_and(|listed| listed.dir == row.dir) {
        return Ok(());
    }
    if !overwrite && replaced.is_some() {
        return Err(Error::user(format!("{} exists; save with overwrite=true or under another name", row.path)));
    }
    if let Some(old) = store.put_checkpoint(row).await?
        && old != row.dir
    {
        futures.discard(old);
    }
    if let Some(replaced) = replaced {
        futures.usage.let_go(&(&replaced).into(), Utc::now()).await;
    }
    Ok(())
}

fn mismatch(outcome: &Outcome) -> Error {
    let name = match outcome {
        Outcome::Created => "Created",
        Outcome::ForwardBackward { .. } => "ForwardBackward",
        Outcome::OptimStep { .. } => "OptimStep",
        Outcome::Saved { .. } => "Saved",
        Outcome::Loaded => "Loaded",
        Outcome::Unloaded => "Unloaded",
        Outcome::RolledBack { .. } => "RolledBack",
        Outcome::Sampled(_) => "Sampled",
    };
    Error::server(format!("the engine answered {name}, which does not fit the request"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::accounts::runs::LiveRun;
    use crate::command::{Datum, Loss, LossInputs, RunCommand, Save};
    use crate::error::Category;
    use crate::futures::issue::{Key, Request};
    use crate::futures::retrieve::Poll;
    use crate::futures::testing::{Rig, owner, run, step};
    use crate::ids::{CheckpointKind, SessionId};
    use crate::store::testing::checkpoint;
    use crate::store::usage::UsageFilter;
    use chrono::DateTime;

    async fn outcome(rig: &Rig, id: &RequestId) -> Result<Answer> {
        match rig.futures.retrieve(id, &owner(), Duration::from_secs(5)).await {
            Poll::Done(answer) => Ok((*answer).clone()),
            Poll::Failed(e) => Err(e),
            Poll::Pending(_) | Poll::Unknown => panic!("the promise is not settled"),
        }
    }

    fn save(rig: &Rig, seq: u64, overwrite: bool) -> (Request, std::path::PathBuf) {
        let dir = rig.dir.path().join(format!("save-{seq}"));
        std::fs::create_dir(&dir).unwrap();
        let path = format!("tinker://{}/weights/a", run());
        let row = CheckpointRow { dir: dir.clone(), size_bytes: 0, ..checkpoint(&path, &owner().0) };
        let command = RunCommand::Save(Save::Training { dir: dir.clone() });
        let request = Request {
            id: RequestId::random(),
            permit: None,
            owner: owner(),
            key: Key::Run { model: run(), seq },
            meaning: seq,
            command: Command::Run { owner: owner(), model: run(), seq, command },
            completion: Completion::Save { row, ttl: Some(TimeDelta::hours(1)), overwrite },
        };
        (request, dir)
    }

    #[tokio::test]
    async fn a_checkpoint_is_listed_when_its_promise_resolves() {
        let rig = Rig::new().await;
        let (request, _) = save(&rig, 1, false);
        let path = CheckpointPath { run: run(), kind: CheckpointKind::Training, name: "a".into() };
        let id = rig.futures.issue(request).unwrap().id;
        assert!(rig.store.checkpoint(&path).await.unwrap().is_none());
        rig.answer(Ok(Outcome::Saved { size_bytes: 9 }));
        assert_eq!(outcome(&rig, &id).await.unwrap(), Answer::Saved { path: path.clone(), size_bytes: 9 });
        let row = rig.store.checkpoint(&path).await.unwrap().unwrap();
        assert_eq!(row.size_bytes, 9);
        assert!(row.expires_at.unwrap() > Utc::now() + TimeDelta::minutes(59));
    }

    #[tokio::test]
    async fn a_taken_name_fails_and_overwriting_removes_the_old_directory() {
        let rig = Rig::new().await;
        let (first, first_dir) = save(&rig, 1, false);
        let (second, second_dir) = save(&rig, 2, false);
        let (third, third_dir) = save(&rig, 3, true);
        let ids: Vec<RequestId> =
            [first, second, third].into_iter().map(|r| rig.futures.issue(r).unwrap().id).collect();
        for id in &ids {
            rig.answer(Ok(Outcome::Saved { size_bytes: 1 }));
            let taken = outcome(&rig, id).await.err();
            assert_eq!(taken.map(|e| e.category), (*id == ids[1]).then_some(Category::User));
        }
        let exist = || (first_dir.exists(), second_dir.exists(), third_dir.exists());
        assert_eq!(exist(), (true, false, true), "somebody may be reading the first");
        let gone = async {
            while first_dir.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
        assert_eq!(exist(), (false, false, true));
    }

    #[tokio::test]
    async fn a_dropped_or_misfitting_reply_fails_the_promise() {
        let rig = Rig::new().await;
        let dropped = rig.futures.issue(step(1, 7)).unwrap().id;
        rig.drop_reply();
        assert_eq!(outcome(&rig, &dropped).await.unwrap_err().category, Category::Server);
        let misfit = rig.futures.issue(step(2, 7)).unwrap().id;
        rig.answer(Ok(Outcome::Loaded));
        assert!(outcome(&rig, &misfit).await.unwrap_err().message.contains("Loaded"));
        let failed = rig.futures.issue(step(3, 7)).unwrap().id;
        rig.answer(Err(Error::user("wrong")));
        assert_eq!(outcome(&rig, &failed).await.unwrap_err().message, "wrong");
    }

    #[tokio::test]
    async fn a_forward_backward_that_fails_counts_the_tokens_the_device_worked_on() {
        let rig = Rig::new().await;
        let live = LiveRun { owner: owner(), session: SessionId("s".into()), base_model: "m".into() };
        rig.futures.runs.begin(&run(), live, None).unwrap();
        let issue = |seq, tokens: usize, forward_only| {
            let inputs = LossInputs::default();
            let (tokens, targets) = (vec![1; tokens], vec![1; tokens]);
            let data = vec![Datum { tokens, targets, k: 1, two_dimensional: false, inputs }];
            let command = RunCommand::ForwardBackward { data, loss: Loss::CrossEntropy, forward_only };
            let command = Command::Run { owner: owner(), model: run(), seq, command };
            rig.futures.issue(Request { command, completion: Completion::ForwardBackward, ..step(seq, seq) }).unwrap()
        };
        let promises = [issue(1, 10, false), issue(2, 10, false), issue(3, 10, true), issue(4, 10, true)];
        let done = || Outcome::ForwardBackward { outputs: vec![], metrics: vec![] };
        rig.meter.trained(Duration::from_micros(5), vec![(Consumer::Run(run()), 10), (Consumer::Run(run()), 3)]);
        rig.answer(Ok(done()));
        rig.answer(Err(Error::user("its loss is not finite")));
        rig.meter.trained(Duration::from_micros(5), vec![(Consumer::Run(run()), 4)]);
        rig.answer(Err(Error::user("neither is this one's")));
        rig.answer(Err(Error::user("this one never began")));
        for (promise, succeeds) in promises.iter().zip([true, false, false, false]) {
            assert_eq!(outcome(&rig, &promise.id).await.is_ok(), succeeds);
        }
        rig.futures.usage().flush(&rig.store, Utc::now()).await.unwrap();
        let all = UsageFilter::all(&owner(), DateTime::UNIX_EPOCH, Utc::now() + TimeDelta::hours(1));
        let [(_, counted)] = &rig.store.usage_by_day(&all).await.unwrap()[..] else { panic!("one row") };
        assert_eq!((counted.train_tokens, counted.forward_tokens, counted.device_micros), (13, 4, 10));
    }
}
