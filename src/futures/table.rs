//! The table of promises: by id and by natural key, with a budget for finished results.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use crate::error::Result;
use crate::ids::{ModelId, OwnerId, RequestId, SessionId};

use super::issue::Key;
use super::journal::Entry;
use super::news::{Event, Logs, Target};
use super::recent::Recent;
use super::state::{Answer, State};

/// Refused numbers remembered of one run. The engine takes no number twice, so the lowest can be forgotten.
const MAX_REFUSED: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Table {
    pub promises: HashMap<RequestId, Promise>,
    /// What each natural key was used for.
    pub keys: HashMap<Key, Claim>,
    pub recent: Recent,
    /// Numbers whose request was refused at the door; they are spent.
    refused: HashMap<ModelId, BTreeSet<u64>>,
    /// What has ended, for clients that ask for many samples at once.
    pub logs: Logs,
    /// Estimated bytes of settled promises, by owner and together.
    held: HashMap<OwnerId, usize>,
    held_bytes: usize,
    /// Promises whose answer was given up since somebody looked here last.
    pub gone: Vec<RequestId>,
}

pub(super) struct Promise {
    pub owner: OwnerId,
    /// The endpoint.
    pub kind: &'static str,
    pub key: Key,
    pub began: DateTime<Utc>,
    /// The same moment, for how long it takes.
    pub since: Instant,
    /// In the order in which promises came.
    pub place: u64,
    pub state: State,
    /// The engine's number for it, once it has been submitted.
    pub ticket: Option<u64>,
    /// Becomes true when `state` is final; long polls wait on it.
    pub settled: watch::Sender<bool>,
    pub settled_at: Option<Instant>,
    pub retrieved_at: Option<Instant>,
    /// Where its end stands in its client's log.
    cursor: Option<i64>,
}

/// The promise a natural key stands for, and what its request meant.
pub(super) struct Claim {
    pub id: RequestId,
    pub meaning: u64,
}

impl Table {
    pub fn insert(&mut self, id: RequestId, owner: OwnerId, (kind, key): (&'static str, Key), meaning: u64) {
        self.keys.insert(key.clone(), Claim { id: id.clone(), meaning });
        let promise = Promise {
            owner,
            kind,
            key,
            began: Utc::now(),
            since: Instant::now(),
            place: self.recent.began(&id),
            state: State::Pending,
            ticket: None,
            settled: watch::channel(false).0,
            settled_at: None,
            retrieved_at: None,
            cursor: None,
        };
        self.promises.insert(id, promise);
    }

    /// Whose an unfinished promise is, of which kind, its key and meaning, and when it began.
    pub fn pending(&self, id: &RequestId) -> Option<(OwnerId, &'static str, Key, u64, DateTime<Utc>)> {
        let promise = self.promises.get(id).filter(|p| matches!(p.state, State::Pending))?;
        let meaning = self.keys.get(&promise.key).map_or(0, |claim| claim.meaning);
        Some((promise.owner.clone(), promise.kind, promise.key.clone(), meaning, promise.began))
    }

    /// True when the number was not spent before.
    pub fn refuse(&mut self, model: &ModelId, seq: u64) -> bool {
        if self.keys.contains_key(&Key::Run { model: model.clone(), seq }) {
            return false;
        }
        let numbers = self.refused.entry(model.clone()).or_default();
        let new = numbers.insert(seq);
        if numbers.len() > MAX_REFUSED {
            numbers.pop_first();
        }
        new
    }

    pub fn was_refused(&self, key: &Key) -> bool {
        matches!(key, Key::Run { model, seq } if self.refused.get(model).is_some_and(|n| n.contains(seq)))
    }

    pub fn forget_refused(&mut self, session: &SessionId) {
        let prefix = format!("{session}:");
        self.refused.retain(|model, _| !model.0.starts_with(&prefix));
    }

    /// Only the first outcome counts: what the journal says of it.
    pub fn settle(&mut self, id: &RequestId, result: Result<Answer>, budget: usize) -> Option<Entry> {
        let promise = self.promises.get_mut(id)?;
        let failure = result.as_ref().err().cloned();
        let entry = Entry::new(id, promise, &result);
        if !promise.state.settle(result) {
            return None;
        }
        match &failure {
            Some(e) => {
                tracing::info!(request = %id, key = %promise.key, category = e.wire_category(), error = %e, "failed")
            }
            None => tracing::debug!(request = %id, key = %promise.key, "done"),
        }
        self.recent.ended(promise, failure.as_ref());
        promise.settled_at = Some(Instant::now());
        promise.settled.send_replace(true);
        if let Some(target) = Target::of(&promise.key) {
            let size_bytes = match &promise.state {
                State::Done(answer) => Some(answer.size_bytes()),
                _ => None,
            };
            promise.cursor = Some(self.logs.push(target, Event { id: id.clone(), size_bytes }));
        }
        let size = promise.state.size_bytes();
        *self.held.entry(promise.owner.clone()).or_default() += size;
        self.held_bytes += size;
        if self.held_bytes > budget {
            self.shrink(budget / 10 * 9);
        }
        Some(entry)
    }

    /// Forget wholly what was settled so long ago.
    pub fn forget_older(&mut self, time: Duration) {
        let old = self.promises.iter().filter(|(_, p)| p.settled_at.is_some_and(|at| at.elapsed() >= time));
        let old: Vec<RequestId> = old.map(|(id, _)| id.clone()).collect();
        old.iter().for_each(|id| self.remove(id));
    }

    pub fn remove(&mut self, id: &RequestId) {
        if let Some(p) = self.promises.remove(id) {
            self.gone.push(id.clone());
            if let (Some(target), Some(cursor)) = (Target::of(&p.key), p.cursor) {
                self.logs.forget(&target, cursor);
            }
            self.release(&p.owner, p.state.size_bytes());
            self.keys.remove(&p.key);
        }
    }

    fn release(&mut self, owner: &OwnerId, bytes: usize) {
        self.held_bytes -= bytes;
        if let Some(held) = self.held.get_mut(owner) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(owner);
            }
        }
    }

    /// Make room until at most `target` bytes are held. Each time the owner who holds most gives something, so that
    /// nobody can push out another's results: what was retrieved first, the oldest first. Samples are forgotten wholly;
    /// of everything else the key stays, so that a late repeat is still not executed again, until nothing else is left.
    fn shrink(&mut self, target: usize) {
        for keys_too in [false, true] {
            let mut queues = self.in_order_of_leaving(keys_too);
            while self.held_bytes > target {
                let largest = queues.iter_mut().filter(|(_, queue)| !queue.is_empty());
                let Some((_, queue)) = largest.max_by_key(|(owner, _)| self.held.get(*owner).copied()) else { break };
                let id = queue.pop_front().expect("empty queues were left out");
                if keys_too { self.remove(&id) } else { self.drop_result(&id) }
            }
        }
    }

    /// Per owner what can go, the first to go in front: results, or all that is settled.
    fn in_order_of_leaving(&self, keys_too: bool) -> HashMap<OwnerId, VecDeque<RequestId>> {
        let goes = |p: &Promise| keys_too || matches!(p.state, State::Done(_)) || matches!(p.key, Key::Sample { .. });
        let settled = self.promises.iter().filter(|(_, p)| goes(p)).filter_map(|(id, p)| {
            let at = p.retrieved_at.or(p.settled_at)?;
            Some((p.retrieved_at.is_none(), at, id, &p.owner))
        });
        let mut all: Vec<_> = settled.collect();
        all.sort();
        let mut queues: HashMap<OwnerId, VecDeque<RequestId>> = HashMap::new();
        for (_, _, id, owner) in all {
            queues.entry(owner.clone()).or_default().push_back(id.clone());
        }
        queues
    }

    fn drop_result(&mut self, id: &RequestId) {
        match self.promises.get_mut(id) {
            Some(p) if !matches!(p.key, Key::Sample { .. }) => {
                let before = p.state.size_bytes();
                p.state = State::Expired;
                self.gone.push(id.clone());
                let (owner, freed) = (p.owner.clone(), before - p.state.size_bytes());
                self.release(&owner, freed);
            }
            _ => self.remove(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::DatumOutput;
    use crate::futures::testing::{owner, run};

    const BUDGET: usize = 11_100;

    /// A settled forward_backward of 600 + 64 + 4000 bytes.
    fn done(table: &mut Table, name: &str, owner: OwnerId, seq: u64) -> RequestId {
        let id = RequestId(name.into());
        table.insert(id.clone(), owner, ("forward_backward", Key::Run { model: run(), seq }), 0);
        let output = DatumOutput { logprobs: vec![0.5; 1000], k: 1, two_dimensional: false };
        table.settle(&id, Ok(Answer::ForwardBackward { outputs: vec![output], metrics: vec![] }), BUDGET);
        id
    }

    fn kept(table: &Table, id: &RequestId) -> bool {
        table.promises.get(id).is_some_and(|p| matches!(p.state, State::Done(_)))
    }

    #[test]
    fn retrieved_results_make_room_first_and_their_numbers_stay_used() {
        let mut table = Table::default();
        let (first, second) = (done(&mut table, "1", owner(), 1), done(&mut table, "2", owner(), 2));
        table.promises.get_mut(&second).unwrap().retrieved_at = Some(Instant::now());
        let third = done(&mut table, "3", owner(), 3);
        assert_eq!([&first, &second, &third].map(|id| kept(&table, id)), [true, false, true]);
        assert!(table.keys.contains_key(&Key::Run { model: run(), seq: 2 }));
        assert_eq!(table.held_bytes, 2 * 4664 + 600);
    }

    #[test]
    fn one_owner_cannot_push_out_anothers_results() {
        let mut table = Table::default();
        let other = done(&mut table, "other", OwnerId("other".into()), 1);
        table.promises.get_mut(&other).unwrap().retrieved_at = Some(Instant::now());
        let mine: Vec<RequestId> = (2..9).map(|seq| done(&mut table, &seq.to_string(), owner(), seq)).collect();
        assert!(kept(&table, &other));
        assert_eq!(mine.iter().filter(|id| kept(&table, id)).count(), 0, "keys and the other's result fill the budget");
        assert!(table.held_bytes <= BUDGET);
    }

    #[test]
    fn when_nothing_else_is_left_old_keys_go() {
        let mut table = Table::default();
        for seq in 1..=40 {
            done(&mut table, &seq.to_string(), owner(), seq);
        }
        assert!(table.held_bytes <= BUDGET && table.keys.len() <= BUDGET / 600, "{} keys", table.keys.len());
        assert!(table.keys.contains_key(&Key::Run { model: run(), seq: 40 }));
    }

    #[test]
    fn refused_numbers_are_bounded_and_end_with_their_session() {
        let mut table = Table::default();
        for seq in 1..=MAX_REFUSED as u64 + 1 {
            assert!(table.refuse(&run(), seq));
        }
        assert!(!table.refuse(&run(), 2));
        let refused = |table: &Table, seq| table.was_refused(&Key::Run { model: run(), seq });
        assert_eq!((refused(&table, 1), refused(&table, 2)), (false, true));
        table.forget_refused(&SessionId("other".into()));
        assert!(refused(&table, 2));
        table.forget_refused(&SessionId("s".into()));
        assert!(!refused(&table, 2));
    }
}
