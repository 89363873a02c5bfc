//! The promise protocol (protocol chapters 10 and 11), in memory: who asked for what, and what came of it.

pub mod admission;
pub mod complete;
mod discard;
mod explain;
pub mod issue;
pub mod meaning;
pub mod retrieve;
pub mod state;
mod table;
#[cfg(test)]
mod testing;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use crate::engine::handle::Handle;
use crate::error::Error;
use crate::ids::{OwnerId, RequestId, SessionId};
use crate::store::Store;

use admission::{Admission, Room};
use issue::Key;
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
    closing: Arc<watch::Sender<bool>>,
    /// Held while a checkpoint's name is checked and taken.
    naming: Arc<tokio::sync::Mutex<()>>,
    admission: Admission,
    engine: Handle,
    store: Store,
    runtime: tokio::runtime::Handle,
    retention: Retention,
    /// Its paths are not for users.
    data_dir: Arc<PathBuf>,
}

impl Futures {
    /// Must be called inside a tokio runtime: completions that touch the store are spawned on it.
    pub fn new(engine: Handle, store: Store, retention: Retention, room: Room, data_dir: PathBuf) -> Self {
        Self {
            table: Arc::default(),
            closing: Arc::new(watch::channel(false).0),
            naming: Arc::default(),
            admission: Admission::new(room),
            engine,
            store,
            runtime: tokio::runtime::Handle::current(),
            retention,
            data_dir: data_dir.into(),
        }
    }

    /// Where requests ask for room before their bodies are read.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Answer every waiting and coming long poll at once: the server is about to end.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Forget what is older than the retention time. To be called every now and then.
    pub fn forget_expired(&self) {
        self.lock().forget_older(self.retention.time);
    }

    /// The session takes no more requests: nobody needs to know which of its numbers were refused.
    pub fn forget_refused(&self, session: &SessionId) {
        self.lock().forget_refused(session);
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
        self.lock().settle(id, result, self.retention.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no code panics while it holds the promise table")
    }
}
