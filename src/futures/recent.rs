//! What each account waits for and what failed lately, for those who ask how it goes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::error::Error;
use crate::ids::{OwnerId, RequestId};

use super::issue::Key;
use super::table::{Promise, Table};

/// Failures remembered of one account.
const FAILURES: usize = 20;

/// A request whose promise is not settled.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub id: RequestId,
    pub key: Key,
    pub waited: Duration,
    /// Unfinished requests that came before it, whoever's they are.
    pub before: usize,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub at: DateTime<Utc>,
    pub id: RequestId,
    pub key: Key,
    pub error: Error,
}

#[derive(Default)]
pub(super) struct Recent {
    /// Promises that are not settled, by the order they came in.
    pending: BTreeMap<u64, RequestId>,
    next: u64,
    failures: HashMap<OwnerId, VecDeque<Failure>>,
}

impl Recent {
    /// The promise's place in the order.
    pub fn began(&mut self, id: &RequestId) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, id.clone());
        self.next
    }

    pub fn ended(&mut self, promise: &Promise, failure: Option<&Error>) {
        let Some(id) = self.pending.remove(&promise.place) else { return };
        if let Some(error) = failure {
            let failures = self.failures.entry(promise.owner.clone()).or_default();
            failures.truncate(FAILURES - 1);
            failures.push_front(Failure { at: Utc::now(), id, key: promise.key.clone(), error: error.clone() });
        }
    }

    /// All that waits, whoever's it is.
    pub fn depth(&self) -> usize {
        self.pending.len()
    }

    /// An account's latest failures, the last one first.
    pub fn failures(&self, owner: &OwnerId) -> Vec<Failure> {
        self.failures.get(owner).into_iter().flatten().cloned().collect()
    }
}

impl Table {
    /// The first `limit` of an account's unfinished requests, and how many it has.
    pub fn waiting(&self, owner: &OwnerId, limit: usize) -> (Vec<Waiting>, usize) {
        let (mut first, mut all) = (Vec::new(), 0);
        for (before, id) in self.recent.pending.values().enumerate() {
            let Some(promise) = self.promises.get(id).filter(|p| p.owner == *owner) else { continue };
            all += 1;
            if first.len() < limit {
                let waited = promise.since.elapsed();
                first.push(Waiting { id: id.clone(), key: promise.key.clone(), waited, before });
            }
        }
        (first, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::futures::state::Answer;
    use crate::futures::testing::{owner, run};

    #[test]
    fn each_account_sees_its_own_and_how_many_came_before() {
        let mut table = Table::default();
        let (mine, other) = (owner(), OwnerId("other".into()));
        let begin = |table: &mut Table, seq: u64, owner: &OwnerId| {
            let id = RequestId(seq.to_string());
            table.insert(id.clone(), owner.clone(), ("optim_step", Key::Run { model: run(), seq }), 0);
            id
        };
        let end = |table: &mut Table, id: &RequestId, failure: Option<&str>| {
            let done = Ok(Answer::OptimStep { metrics: vec![] });
            table.settle(id, failure.map_or(done, |text| Err(Error::user(text))), usize::MAX);
        };
        let ids: Vec<_> = (0..6).map(|seq| begin(&mut table, seq, if seq % 2 == 0 { &other } else { &mine })).collect();
        let before = |table: &Table, limit| {
            let (waiting, all) = table.waiting(&owner(), limit);
            (waiting.iter().map(|w| (w.id.0.clone(), w.before)).collect::<Vec<_>>(), all)
        };
        let named = |pairs: &[(&str, usize)]| pairs.iter().map(|(id, n)| (id.to_string(), *n)).collect::<Vec<_>>();
        assert_eq!(before(&table, 2), (named(&[("1", 1), ("3", 3)]), 3));
        table.promises.get_mut(&ids[1]).unwrap().began = DateTime::UNIX_EPOCH;
        assert!(table.waiting(&mine, 1).0[0].waited < Duration::from_secs(3600), "whatever the clock on the wall does");
        end(&mut table, &ids[0], Some("theirs"));
        end(&mut table, &ids[1], None);
        assert_eq!((before(&table, 9), table.recent.depth()), ((named(&[("3", 1), ("5", 3)]), 2), 4));
        end(&mut table, &ids[3], Some("mine"));
        end(&mut table, &ids[3], Some("again"));
        let told: Vec<_> = table.recent.failures(&owner()).into_iter().map(|f| f.error.message).collect();
        assert_eq!(told, ["mine"]);
        for seq in 10..40 {
            let id = begin(&mut table, seq, &owner());
            end(&mut table, &id, Some(&seq.to_string()));
        }
        let failures = table.recent.failures(&owner());
        assert_eq!((failures.len(), failures[0].error.message.as_str()), (20, "39"));
    }
}
