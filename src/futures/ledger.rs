//! What was asked and answered, on disk: requests before their promise is given, answers before they are told.
//!
//! A run's requests stay until a state of the run on disk holds what they did, all others until they are answered;
//! answers stay as long as they can be fetched.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::command::{Command, Fault};
use crate::engine::handle::Keeper;
use crate::error::Result;
use crate::ids::{ModelId, OwnerId, RequestId};
use crate::wal::{Log, RecordId, Sync};

use super::complete::Completion;
use super::issue::Key;
use super::journal::OPTIM_STEP;
use super::records::{Answered, Record, Written, encoded};
use super::restored::Restored;

/// A run, and why it is marked or that it is not any more.
pub type Mark = (ModelId, Option<Fault>);

/// Clones share one.
#[derive(Clone)]
pub struct Ledger {
    log: Log,
    index: Arc<Mutex<Index>>,
    /// Marks of runs that are yet to be written into their rows.
    marks: Arc<Mutex<Vec<Mark>>>,
}

/// Which records are still needed, and for what.
#[derive(Default)]
pub(super) struct Index {
    /// Requests that are no run's and not answered.
    pub open: HashMap<RequestId, RecordId>,
    pub answers: HashMap<RequestId, RecordId>,
    pub runs: HashMap<ModelId, RunIndex>,
    /// Answers that could not be written yet.
    owed: Vec<Owed>,
}

/// An answer, ready to be written.
struct Owed {
    id: RequestId,
    key: Key,
    /// The request failed and left its run as it was: only its number is of use.
    spent: bool,
    bytes: Vec<u8>,
}

#[derive(Default)]
pub(super) struct RunIndex {
    /// Numbers whose answer is not written.
    pub open: BTreeSet<u64>,
    /// Records that the run's state on disk does not make superfluous, by the number they belong to.
    pub needed: BTreeMap<u64, Vec<RecordId>>,
}

/// The place of a request in its run's order; the creation is number 0.
pub(super) fn place(key: &Key) -> Option<(ModelId, u64)> {
    match key {
        Key::Run { model, seq } => Some((model.clone(), *seq)),
        Key::Creation { session, model_seq } => Some((session.model(*model_seq), 0)),
        Key::Unload { .. } | Key::Sample { .. } | Key::CustomLoss { .. } => None,
    }
}

impl Ledger {
    /// Opens the ledger in `dir`, with what an earlier process left there.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub fn open(dir: &Path, sync: Sync) -> Result<(Self, Restored)> {
        let (mut index, mut restored, mut unread) = (Index::default(), Restored::default(), 0);
        let mut superfluous = Vec::new();
        let (log, damage) = Log::open(dir, sync, |record, payload| match rmp_serde::from_slice(&payload) {
            Ok(read) => superfluous.extend(restored.take(&mut index, record, read)),
            Err(e) => {
                unread += 1;
                tracing::error!(record, error = %e, "a record of the journal cannot be understood");
            }
        })?;
        superfluous.into_iter().for_each(|record| log.release(record));
        if damage.torn > 0 {
            tracing::info!(
                bytes = damage.torn,
                "the journal ended in the middle of a record, which nobody was promised"
            );
        }
        for place in &damage.unreadable {
            tracing::error!("journal damaged: {place}; what was written there is lost");
        }
        Ok((Self { log, index: Arc::new(Mutex::new(index)), marks: Arc::default() }, restored))
    }

    /// An empty one in this directory.
    #[cfg(test)]
    pub fn for_testing(data_dir: &Path) -> Self {
        let sync = Sync::Within(std::time::Duration::ZERO);
        Self::open(&data_dir.join("journal"), sync).unwrap().0
    }

    /// To be called before the promise is given.
    ///
    /// # Errors
    /// Server errors: it cannot be written, and was not taken.
    pub fn accept(
        &self,
        (id, owner): (&RequestId, &OwnerId),
        (key, meaning): (&Key, u64),
        command: &Command,
        completion: &Completion,
    ) -> Result<()> {
        let bytes = encoded(&Written::Accepted { id, owner, key, meaning, command, completion })?;
        let record = self.log.append(&bytes)?;
        let mut index = self.lock();
        match place(key) {
            Some((model, seq)) => {
                let run = index.runs.entry(model).or_default();
                run.open.insert(seq);
                run.needed.entry(seq).or_default().push(record);
            }
            None => {
                index.open.insert(id.clone(), record);
            }
        }
        tracing::debug!(target: "tinderbox::durability", moment = "accept", key = %key, "accepted");
        Ok(())
    }

    /// To be called before the answer is told. One that cannot be written is kept in memory and tried again; after a crash
    /// before that its request is done again.
    pub fn answer(&self, answered: &Answered) {
        let Answered { id, owner, kind, key, meaning, began, ended, result } = answered;
        let (meaning, began, ended) = (*meaning, *began, *ended);
        match encoded(&Written::Answered { id, owner, kind, key, meaning, began, ended, result }) {
            Ok(bytes) => {
                // A step that fails drops its run's gradient.
                let spent = result.is_err() && kind != OPTIM_STEP && matches!(key, Key::Run { .. });
                self.write_answer(Owed { id: id.clone(), key: key.clone(), spent, bytes });
            }
            Err(e) => tracing::error!(request = %id, error = %e, "an answer cannot be written"),
        }
    }

    fn write_answer(&self, owed: Owed) {
        let written = self.log.append(&owed.bytes);
        let mut index = self.lock();
        match written {
            Err(e) => {
                if index.owed.is_empty() {
                    tracing::warn!(error = %e, "answers cannot be written for now");
                }
                index.owed.push(owed);
            }
            Ok(record) => {
                let Owed { id, key, spent, .. } = owed;
                let of_run = place(&key);
                if let Some((model, seq)) = &of_run
                    && let Some(run) = index.runs.get_mut(model)
                {
                    run.open.remove(seq);
                }
                let done = index.open.remove(&id).filter(|_| of_run.is_none());
                let older = index.answers.insert(id, record);
                drop(index);
                done.into_iter().chain(older).for_each(|record| self.log.release(record));
                if let Some((model, seq)) = of_run.filter(|_| spent) {
                    self.shorten(&model, seq);
                }
            }
        }
    }

    /// Tries again to write what could not be written.
    pub fn write_owed(&self) {
        let owed = std::mem::take(&mut self.lock().owed);
        owed.into_iter().for_each(|owed| self.write_answer(owed));
    }

    /// The number was refused at the door.
    pub fn refuse(&self, model: &ModelId, seq: u64) {
        self.note(model, seq, &Record::Refused { model: model.clone(), seq });
    }

    /// The answer need not be found again.
    pub fn forget(&self, id: &RequestId) {
        let record = self.lock().answers.remove(id);
        record.into_iter().for_each(|record| self.log.release(record));
    }

    /// The marks of runs since the last call, oldest first.
    pub fn take_marks(&self) -> Vec<Mark> {
        std::mem::take(&mut *self.marks.lock().expect("no code panics while it holds the marks"))
    }

    /// Whether nothing may be promised before it survives a power cut.
    pub fn is_strict(&self) -> bool {
        self.log.is_strict()
    }

    /// Resolves when everything so far survives a power cut.
    ///
    /// # Errors
    /// Server errors: nobody can promise that.
    pub async fn durable(&self) -> Result<()> {
        self.log.synced().await
    }

    /// Bytes of the files, and of what is still needed of them.
    pub fn bytes(&self) -> (u64, u64) {
        self.log.bytes()
    }

    /// Of this request only its number is needed.
    fn shorten(&self, model: &ModelId, seq: u64) {
        let request = {
            let mut index = self.lock();
            index.runs.get_mut(model).and_then(|run| run.needed.remove(&seq)).unwrap_or_default()
        };
        self.refuse(model, seq);
        request.into_iter().for_each(|record| self.log.release(record));
    }

    /// A record that is needed until the run's state goes beyond `seq`.
    fn note(&self, model: &ModelId, seq: u64, record: &Record) {
        match encoded(record).and_then(|bytes| self.log.append(&bytes)) {
            Ok(record) => {
                let mut index = self.lock();
                index.runs.entry(model.clone()).or_default().needed.entry(seq).or_default().push(record);
            }
            // The run waits for this number again after a crash; the limit on that ends it.
            Err(e) => tracing::warn!(run = %model, seq_id = seq, error = %e, "a skipped number was not written"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().expect("no code panics while it holds the ledger")
    }
}

impl Keeper for Ledger {
    fn settled(&self, model: &ModelId, next: u64) -> bool {
        self.lock().runs.get(model).is_none_or(|run| run.open.range(..next).next().is_none())
    }

    fn sync(&self) -> Result<()> {
        self.log.sync_now()
    }

    fn kept(&self, model: &ModelId, next: u64) {
        let mut index = self.lock();
        let Some(run) = index.runs.get_mut(model) else { return };
        let later = run.needed.split_off(&next);
        let superfluous = std::mem::replace(&mut run.needed, later);
        drop(index);
        superfluous.into_values().flatten().for_each(|record| self.log.release(record));
    }

    fn gave_up(&self, model: &ModelId, from: u64, next: u64) {
        self.note(model, next - 1, &Record::GaveUp { model: model.clone(), from, next });
    }

    fn marked(&self, model: &ModelId, fault: Option<Fault>) {
        let mut marks = self.marks.lock().expect("no code panics while it holds the marks");
        marks.push((model.clone(), fault));
    }

    fn ended(&self, model: &ModelId) {
        // Not needed any more as soon as it is written: it outlives in the files what it ends.
        match encoded(&Record::Ended { model: model.clone() }).and_then(|bytes| self.log.append(&bytes)) {
            Ok(record) => self.log.release(record),
            Err(e) => tracing::warn!(run = %model, error = %e, "the end of a run was not written"),
        }
        let run = self.lock().runs.remove(model);
        run.into_iter().flat_map(|run| run.needed.into_values()).flatten().for_each(|r| self.log.release(r));
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;
    use crate::error::Error;
    use crate::futures::complete::Completion;
    use crate::futures::issue::Request;
    use crate::futures::restored::RestoredRun;
    use crate::futures::state::Answer;
    use crate::futures::testing::{owner, run, step};
    use std::time::Duration;

    const SYNC: Sync = Sync::Within(Duration::ZERO);

    fn accept(ledger: &Ledger, seq: u64) -> Request {
        let request = step(seq, seq);
        let (key, command, completion) = (&request.key, &request.command, &request.completion);
        ledger.accept((&request.id, &owner()), (key, seq), command, completion).unwrap();
        request
    }

    fn answer(ledger: &Ledger, request: &Request, result: Result<Answer>) {
        let (id, key, kind) = (request.id.clone(), request.key.clone(), OPTIM_STEP.into());
        let (meaning, began, ended) = (request.meaning, Utc::now(), Utc::now());
        ledger.answer(&Answered { id, owner: owner(), kind, key, meaning, began, ended, result });
    }

    fn stepped() -> Result<Answer> {
        Ok(Answer::OptimStep { metrics: vec![] })
    }

    fn reopened(dir: &Path) -> (Ledger, Restored) {
        Ledger::open(dir, SYNC).unwrap()
    }

    #[test]
    fn requests_come_back_until_a_state_holds_them_and_answers_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = reopened(dir.path()).0;
        let first = accept(&ledger, 1);
        assert!(!ledger.settled(&run(), 2));
        answer(&ledger, &first, stepped());
        assert!(ledger.settled(&run(), 2));
        let second = accept(&ledger, 2);
        ledger.refuse(&run(), 3);
        assert!(ledger.settled(&run(), 2) && !ledger.settled(&run(), 3));
        drop(ledger);

        let (ledger, restored) = reopened(dir.path());
        let RestoredRun { requests, answered, refused, .. } = &restored.runs[&run()];
        let numbers: Vec<u64> = requests.keys().copied().collect();
        assert_eq!((numbers, &requests[&2].id), (vec![1, 2], &second.id));
        assert_eq!((requests[&2].meaning, &requests[&2].command), (2, &second.command));
        assert_eq!((answered.get(&1), answered.get(&2), refused.contains(&3)), (Some(&true), None, true));
        assert_eq!(restored.answers.iter().map(|a| a.id.clone()).collect::<Vec<_>>(), std::slice::from_ref(&first.id));
        assert!(!ledger.settled(&run(), 3), "what is open stays open");
        let before = ledger.bytes().1;
        ledger.kept(&run(), 2);
        ledger.forget(&first.id);
        assert!(ledger.bytes().1 < before);
    }

    #[test]
    fn of_what_failed_only_the_number_is_kept_and_a_hole_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = reopened(dir.path()).0;
        let mut failed = accept(&ledger, 1);
        failed.completion = Completion::ForwardBackward;
        let (id, key, result) = (failed.id.clone(), failed.key.clone(), Err(Error::user("not finite")));
        let (began, ended, kind) = (Utc::now(), Utc::now(), "forward_backward".to_owned());
        ledger.answer(&Answered { id, owner: owner(), kind, key, meaning: 1, began, ended, result });
        let live = ledger.bytes().1;
        let third = accept(&ledger, 3);
        answer(&ledger, &third, stepped());
        drop(ledger);
        let (ledger, restored) = reopened(dir.path());
        let known = &restored.runs[&run()];
        assert!(live < 1000 && known.skips(1), "{live} bytes");
        assert_eq!((known.hole(1), known.last()), (Some(2), 3));
        ledger.ended(&run());
        drop(ledger);
        let (_, restored) = reopened(dir.path());
        assert!(restored.runs.is_empty() && restored.ended.contains(&run()));
    }
}
