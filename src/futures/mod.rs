//! The promise protocol (protocol chapters 10 and 11), in memory: who asked for what, and what came of it.

pub mod complete;
pub mod issue;
pub mod meaning;
pub mod retrieve;
pub mod state;
#[cfg(test)]
mod testing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::engine::handle::Handle;
use crate::error::Error;
use crate::ids::{OwnerId, RequestId};
use crate::store::Store;

use issue::Key;
use state::State;

/// How long and how much of finished work is kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// A result younger than this is kept, unless the bytes run out.
    pub time: Duration,
    /// Budget of all kept results together; over it, the oldest retrieved ones go first.
    pub bytes: usize,
}

/// All promises of this process. Clones share one table.
#[derive(Clone)]
pub struct Futures {
    table: Arc<Mutex<Table>>,
    closing: Arc<watch::Sender<bool>>,
    /// Held while a checkpoint's name is checked and taken.
    naming: Arc<tokio::sync::Mutex<()>>,
    engine: Handle,
    store: Store,
    runtime: tokio::runtime::Handle,
    retention: Retention,
}

#[derive(Default)]
struct Table {
    promises: HashMap<RequestId, Promise>,
    keys: HashMap<Key, Claim>,
    /// Estimated bytes of all results held.
    held_bytes: usize,
}

struct Promise {
    owner: OwnerId,
    key: Key,
    state: State,
    /// Becomes true when `state` is final; long polls wait on it.
    settled: watch::Sender<bool>,
    settled_at: Option<Instant>,
    retrieved_at: Option<Instant>,
}

/// What a natural key was used for.
enum Claim {
    Issued {
        id: RequestId,
        meaning: u64,
    },
    /// The request under this key was refused at the door; the number is spent.
    Refused,
}

impl Futures {
    /// Must be called inside a tokio runtime: completions that touch the store are spawned on it.
    pub fn new(engine: Handle, store: Store, retention: Retention) -> Self {
        Self {
            table: Arc::default(),
            closing: Arc::new(watch::channel(false).0),
            naming: Arc::default(),
            engine,
            store,
            runtime: tokio::runtime::Handle::current(),
            retention,
        }
    }

    /// Answer every waiting and coming long poll at once: the server is about to end.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Forget what is older than the retention time. To be called every now and then.
    pub fn forget_expired(&self) {
        let mut table = self.lock();
        let time = self.retention.time;
        let old: Vec<RequestId> = table
            .promises
            .iter()
            .filter(|(_, p)| p.settled_at.is_some_and(|at| at.elapsed() >= time))
            .map(|(id, _)| id.clone())
            .collect();
        for id in old {
            table.remove(&id);
        }
    }

    /// The end of a promise. Only the first call counts, so that a guard's alarm cannot overwrite a result.
    fn settle(&self, id: &RequestId, result: Result<state::Answer, Error>) {
        let mut table = self.lock();
        let Some(promise) = table.promises.get_mut(id) else { return };
        let failure = result.as_ref().err().cloned();
        if !promise.state.settle(result) {
            return;
        }
        match failure {
            Some(e) => {
                tracing::info!(request = %id, key = %promise.key, category = e.wire_category(), error = %e, "failed")
            }
            None => tracing::debug!(request = %id, key = %promise.key, "done"),
        }
        promise.settled_at = Some(Instant::now());
        promise.settled.send_replace(true);
        table.held_bytes += table.promises[id].state.size_bytes();
        if table.held_bytes > self.retention.bytes {
            table.shrink(self.retention.bytes / 10 * 9);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no code panics while it holds the promise table")
    }
}

impl Table {
    fn remove(&mut self, id: &RequestId) {
        if let Some(p) = self.promises.remove(id) {
            self.held_bytes -= p.state.size_bytes();
            self.keys.remove(&p.key);
        }
    }

    /// Drop results until at most `target` bytes are held: retrieved ones first, oldest first. Samples are forgotten
    /// wholly; of everything else the key stays, so that a late repeat is still not executed again.
    fn shrink(&mut self, target: usize) {
        let mut done: Vec<(bool, Instant, RequestId)> = self
            .promises
            .iter()
            .filter(|(_, p)| matches!(p.state, State::Done(_)) || matches!(p.key, Key::Sample { .. }))
            .filter_map(|(id, p)| {
                let at = p.retrieved_at.or(p.settled_at)?;
                Some((p.retrieved_at.is_none(), at, id.clone()))
            })
            .collect();
        done.sort();
        for (_, _, id) in done {
            if self.held_bytes <= target {
                return;
            }
            match self.promises.get_mut(&id) {
                Some(p) if !matches!(p.key, Key::Sample { .. }) => {
                    self.held_bytes -= p.state.size_bytes();
                    p.state = State::Expired;
                }
                _ => self.remove(&id),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::testing::{Rig, owner, run};
    use crate::command::{Command, DatumOutput, Loss, Outcome, RunCommand};
    use crate::futures::complete::Completion;
    use crate::futures::issue::{Key, Request};
    use crate::futures::retrieve::Poll;

    fn forward(seq: u64) -> Request {
        let command = RunCommand::ForwardBackward { data: vec![], loss: Loss::CrossEntropy, forward_only: true };
        let key = Key::Run { model: run(), seq };
        let command = Command::Run { model: run(), seq, command };
        Request { owner: owner(), key, meaning: 0, command, completion: Completion::ForwardBackward }
    }

    #[tokio::test]
    async fn retrieved_results_make_room_first_and_their_numbers_stay_used() {
        // Each result is 600 + 64 + 4000 bytes: the third does not fit.
        let rig = Rig::keeping(11_000).await;
        let output = DatumOutput { logprobs: vec![0.5; 1000], k: 1, two_dimensional: false };
        let mut ids = Vec::new();
        for seq in 1..=3 {
            ids.push(rig.futures.issue(forward(seq)).unwrap());
            if seq == 3 {
                let poll = rig.futures.retrieve(&ids[1], &owner(), Duration::ZERO).await;
                assert!(matches!(poll, Poll::Done(_)));
            }
            rig.answer(Ok(Outcome::ForwardBackward { outputs: vec![output.clone()], metrics: vec![] }));
        }
        let mut kept = Vec::new();
        for id in &ids {
            kept.push(matches!(rig.futures.retrieve(id, &owner(), Duration::ZERO).await, Poll::Done(_)));
        }
        assert_eq!(kept, [true, false, true]);
        assert_eq!(rig.futures.issue(forward(2)).unwrap(), ids[1]);
        assert_eq!(rig.submitted(), 0);
    }
}
