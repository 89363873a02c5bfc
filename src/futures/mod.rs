//! The promise protocol (protocol chapters 10 and 11), in memory: who asked for what, and what came of it.

pub mod admission;
pub mod complete;
mod direct;
mod discard;
mod disk;
mod explain;
pub mod issue;
pub mod journal;
pub mod ledger;
mod leftovers;
pub mod meaning;
mod moved;
pub mod news;
pub mod pace;
pub mod recent;
mod records;
pub mod restored;
pub mod retrieve;
mod revive;
pub mod state;
mod table;
#[cfg(test)]
mod testing;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::Utc;
use tokio::sync::watch;

use crate::accounts::Accounts;
use crate::accounts::runs::Runs;
use crate::accounts::tally::Tally;
use crate::accounts::usage::Usage;
use crate::command::{Command, Outcome, RunCommand};
use crate::engine::handle::{Handle, NOW};
use crate::error::{Category, Error};
use crate::ids::{ModelId, OwnerId, RequestId, SessionId};
use crate::store::Store;
use crate::store::usage::Counters;

use admission::{Admission, Room};
use issue::Key;
use journal::{Entry, Journal};
use ledger::Ledger;
use pace::Pace;
use recent::{Failure, Waiting};
use records::Answered;
use table::Table;

/// How long and how much of finished work is kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// A result younger than this is kept, unless the bytes run out.
    pub time: Duration,
    /// Budget of all kept results together; over it, results of the owner who holds most go first.
    pub bytes: usize,
    /// How long the files of a checkpoint outlive its row, for those who still read them.
    pub files: Duration,
}

/// All promises of this process. Clones share one table.
#[derive(Clone)]
pub struct Futures {
    table: Arc<Mutex<Table>>,
    journal: Arc<Mutex<Journal>>,
    closing: Arc<watch::Sender<bool>>,
    /// Held while a checkpoint's name is checked and taken.
    naming: Arc<tokio::sync::Mutex<()>>,
    admission: Admission,
    accounts: Accounts,
    pace: Pace,
    runs: Runs,
    usage: Usage,
    engine: Handle,
    store: Store,
    ledger: Ledger,
    runtime: tokio::runtime::Handle,
    retention: Retention,
    /// Its paths are not for users.
    data_dir: Arc<PathBuf>,
}

impl Futures {
    /// Must be called inside a tokio runtime: completions that touch the store are spawned on it.
    pub fn new(
        engine: Handle,
        store: Store,
        retention: Retention,
        room: Room,
        accounts: Accounts,
        data_dir: PathBuf,
        ledger: Ledger,
    ) -> Self {
        Self {
            table: Arc::default(),
            journal: Arc::default(),
            closing: Arc::new(watch::channel(false).0),
            naming: Arc::default(),
            admission: Admission::new(room, accounts.clone()),
            pace: Pace::new(accounts.clone()),
            accounts,
            runs: Runs::default(),
            usage: Usage::new(Utc::now()),
            engine,
            store,
            ledger,
            runtime: tokio::runtime::Handle::current(),
            retention,
            data_dir: data_dir.into(),
        }
    }

    /// Where requests ask for room before their bodies are read.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Everybody's quotas.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Requests and tokens per minute.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The runs that are in the engine.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// What everybody took.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Counts what a request took; what it had reserved and did not generate is free again.
    fn took(&self, tally: &mut Tally, took: Counters) {
        let Some(spender) = tally.spender.take() else { return };
        self.pace.settle(&spender.owner, tally.reserved, took.sampled_tokens);
        if took != Counters::default() {
            self.usage.add(spender, &took);
        }
    }

    /// The first `limit` of an owner's unfinished requests, how many it has, and how many all owners have.
    pub fn waiting(&self, owner: &OwnerId, limit: usize) -> (Vec<Waiting>, usize, usize) {
        let table = self.lock();
        let (first, mine) = table.waiting(owner, limit);
        (first, mine, table.recent.depth())
    }

    /// An owner's latest failures, the last one first.
    pub fn failures(&self, owner: &OwnerId) -> Vec<Failure> {
        self.lock().recent.failures(owner)
    }

    /// Answer every waiting and coming long poll at once: the server is about to end.
    pub fn close(&self) {
        self.closing.send_replace(true);
        self.pace.close();
    }

    /// Forget what is older than the retention time. To be called every now and then.
    pub fn forget_expired(&self) {
        self.lock().forget_older(self.retention.time);
        self.forget_gone();
    }

    /// Tries again to write answers that the disk had no room for.
    pub fn write_owed(&self) {
        self.ledger.write_owed();
    }

    /// Writes which runs were marked, or are not any more, into their rows.
    pub async fn write_marks(&self) -> Result<(), Error> {
        for (model, fault) in self.ledger.take_marks() {
            self.store.mark_run(&model, fault.as_ref()).await?;
        }
        Ok(())
    }

    /// The run's weights become those of its last state on disk. → the number that came next then.
    ///
    /// # Errors
    /// User errors: it has no state yet, or is not in the engine.
    pub async fn roll_back(&self, owner: OwnerId, model: ModelId) -> Result<u64, Error> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        let command = Command::Run { owner, model, seq: NOW, command: RunCommand::RollBack };
        self.engine.submit(command, Box::new(move |outcome| drop(tx.send(outcome))));
        let gone = || Error::server("the engine failed or is stopping");
        match rx.await.map_err(|_| gone())?? {
            Outcome::RolledBack { next } => Ok(next),
            _ => Err(gone()),
        }
    }

    /// Answers that are not in the table need not be on disk.
    fn forget_gone(&self) {
        let gone = std::mem::take(&mut self.lock().gone);
        gone.iter().for_each(|id| self.ledger.forget(id));
    }

    /// Resolves at once, or with strict durability when everything that was taken so far survives a power cut.
    ///
    /// # Errors
    /// Server errors: the disk failed.
    pub async fn durable(&self) -> Result<(), Error> {
        if self.ledger.is_strict() {
            self.ledger.durable().await?;
            self.store.sync().await?;
        }
        Ok(())
    }

    /// The session takes no more requests: nobody needs to know which of its numbers were refused, or its news.
    pub fn forget_session(&self, session: &SessionId) {
        let mut table = self.lock();
        table.forget_refused(session);
        table.logs.forget_session(session);
    }

    /// The requests of a session that have ended since the server started, the newest thousands of them.
    pub fn journal_of(&self, session: &SessionId) -> Vec<Entry> {
        self.journal().of(session)
    }

    /// Stop the work on an abandoned sample of this owner. All other ids are left alone.
    pub fn cancel(&self, id: &RequestId, owner: &OwnerId) {
        let is_sample = |p: &table::Promise| p.owner == *owner && matches!(p.key, Key::Sample { .. });
        if self.lock().promises.get(id).is_some_and(is_sample) {
            self.engine.cancel(id.clone());
        }
    }

    /// The end of a promise. Only the first call counts, so that a guard's alarm cannot overwrite a result.
    fn settle(&self, id: &RequestId, result: Result<state::Answer, Error>) {
        // What the end of the server broke off is done after the next start.
        if *self.closing.borrow() && matches!(&result, Err(e) if e.category == Category::Server) {
            return;
        }
        let pending = self.lock().pending(id);
        let Some((owner, kind, key, meaning, began)) = pending else { return };
        let answered =
            Answered { id: id.clone(), owner, kind: kind.into(), key, meaning, began, ended: Utc::now(), result };
        self.ledger.answer(&answered);
        let mut table = self.lock();
        if let Some(entry) = table.settle(id, answered.result, self.retention.bytes) {
            // Before anybody can see that it has ended.
            self.journal().push(entry);
        }
        drop(table);
        self.forget_gone();
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().expect("no code panics while it holds the journal")
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no code panics while it holds the promise table")
    }
}
