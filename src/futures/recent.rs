//! What each account waits for and what failed lately, for those who ask how it goes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use chrono::{DateTime, Utc};

use crate::error::Error;
use crate::ids::{OwnerId, RequestId};

use super::issue::Key;

/// Failures remembered of one account.
const FAILURES: usize = 20;

/// A request whose promise is not settled.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub id: RequestId,
    pub key: Key,
    pub since: Instant,
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
    /// Unfinished requests by the order they came in.
    pending: BTreeMap<u64, (OwnerId, RequestId, Key, Instant)>,
    numbers: HashMap<RequestId, u64>,
    next: u64,
    failures: HashMap<OwnerId, VecDeque<Failure>>,
}

impl Recent {
    pub fn began(&mut self, id: &RequestId, owner: &OwnerId, key: &Key) {
        self.next += 1;
        self.numbers.insert(id.clone(), self.next);
        self.pending.insert(self.next, (owner.clone(), id.clone(), key.clone(), Instant::now()));
    }

    pub fn ended(&mut self, id: &RequestId, failure: Option<&Error>) {
        let number = self.numbers.remove(id);
        let Some((owner, id, key, _)) = number.and_then(|n| self.pending.remove(&n)) else { return };
        if let Some(error) = failure {
            let failures = self.failures.entry(owner).or_default();
            failures.truncate(FAILURES - 1);
            failures.push_front(Failure { at: Utc::now(), id, key, error: error.clone() });
        }
    }

    /// All that waits, whoever's it is.
    pub fn depth(&self) -> usize {
        self.pending.len()
    }

    /// The first `limit` of an account's unfinished requests, and how many it has.
    pub fn waiting(&self, owner: &OwnerId, limit: usize) -> (Vec<Waiting>, usize) {
        let mine = self.pending.values().enumerate().filter(|(_, (o, ..))| o == owner);
        let mut first = Vec::new();
        let mut all = 0;
        for (before, (_, id, key, since)) in mine {
            all += 1;
            if first.len() < limit {
                first.push(Waiting { id: id.clone(), key: key.clone(), since: *since, before });
            }
        }
        (first, all)
    }

    /// An account's latest failures, the last one first.
    pub fn failures(&self, owner: &OwnerId) -> Vec<Failure> {
        self.failures.get(owner).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::futures::testing::{owner, run};

    #[test]
    fn each_account_sees_its_own_and_how_many_came_before() {
        let mut recent = Recent::default();
        let (mine, other) = (owner(), OwnerId("other".into()));
        let begin = |recent: &mut Recent, seq: u64, owner: &OwnerId| {
            let id = RequestId(seq.to_string());
            recent.began(&id, owner, &Key::Run { model: run(), seq });
            id
        };
        let ids: Vec<_> =
            (0..6).map(|seq| begin(&mut recent, seq, if seq % 2 == 0 { &other } else { &mine })).collect();
        let before = |recent: &Recent, limit| {
            let (waiting, all) = recent.waiting(&owner(), limit);
            (waiting.iter().map(|w| (w.id.0.clone(), w.before)).collect::<Vec<_>>(), all)
        };
        let named = |pairs: &[(&str, usize)]| pairs.iter().map(|(id, n)| (id.to_string(), *n)).collect::<Vec<_>>();
        assert_eq!(before(&recent, 2), (named(&[("1", 1), ("3", 3)]), 3));
        recent.ended(&ids[0], Some(&Error::user("theirs")));
        recent.ended(&ids[1], None);
        assert_eq!((before(&recent, 9), recent.depth()), ((named(&[("3", 1), ("5", 3)]), 2), 4));
        recent.ended(&ids[3], Some(&Error::user("mine")));
        recent.ended(&ids[3], Some(&Error::user("again")));
        let told: Vec<_> = recent.failures(&owner()).into_iter().map(|f| f.error.message).collect();
        assert_eq!(told, ["mine"]);
        for seq in 10..40 {
            let id = begin(&mut recent, seq, &owner());
            recent.ended(&id, Some(&Error::user(seq.to_string())));
        }
        let failures = recent.failures(&owner());
        assert_eq!((failures.len(), failures[0].error.message.as_str()), (20, "39"));
    }
}
