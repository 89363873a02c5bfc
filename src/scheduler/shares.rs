//! Who is next: device time in fair shares among owners. Virtual time as in start-time fair queueing (Goyal et al. 1996).
//!
//! An owner's virtual time is the device time it used, divided by its weight. Whoever has the least is next. An owner who
//! comes back from idling starts at the time of the one being served, so that idling saves nothing up and a newcomer
//! waits for the piece of work in progress, not for what others have queued.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::ids::OwnerId;

/// What device time is used for. One owner's training and sampling share that owner's time half and half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Training,
    Sampling,
}

/// The account of every owner.
#[derive(Default)]
pub struct Shares {
    accounts: HashMap<OwnerId, Account>,
    weights: HashMap<OwnerId, f64>,
    /// Virtual time of the owner who was served last when that began.
    now: f64,
}

#[derive(Clone, Copy, Default)]
struct Account {
    time: f64,
    /// Seconds of training for which no sampling was done yet; negative the other way round. Never more than the last
    /// piece of work, so that a long time of one kind alone leaves no debt.
    lead: f64,
    seconds: f64,
}

/// Accounts kept of owners who may be gone.
const MAX_ACCOUNTS: usize = 10_000;

impl Shares {
    /// Replaces all weights; who is not named has 1. Weights that are not positive numbers count as 1.
    pub fn set_weights(&mut self, weights: HashMap<OwnerId, f64>) {
        self.weights = weights;
        self.weights.retain(|_, w| w.is_finite() && *w > 0.0);
    }

    pub fn weight(&self, owner: &OwnerId) -> f64 {
        self.weights.get(owner).copied().unwrap_or(1.0)
    }

    /// Device seconds this owner has used.
    pub fn seconds(&self, owner: &OwnerId) -> f64 {
        self.account(owner).seconds
    }

    /// An owner who had nothing to do has something now.
    pub fn arrive(&mut self, owner: &OwnerId) {
        if self.accounts.len() >= MAX_ACCOUNTS {
            let now = self.now;
            self.accounts.retain(|_, a| a.time > now);
        }
        let now = self.now;
        let account = self.accounts.entry(owner.clone()).or_default();
        account.time = account.time.max(now);
    }

    /// This owner is served now. One that could not be before, for want of memory say, is not repaid for it: newcomers
    /// would wait meanwhile.
    pub fn serve(&mut self, owner: &OwnerId) {
        let account = self.account(owner);
        self.now = self.now.max(account.time);
        self.accounts.insert(owner.clone(), Account { time: self.now, ..account });
    }

    /// Device time that the owners of `parts` used together, each in proportion to its number.
    pub fn charge(&mut self, what: Use, parts: &[(OwnerId, usize)], seconds: f64) {
        let all: usize = parts.iter().map(|(_, n)| n).sum();
        for (owner, n) in parts {
            let used = seconds * *n as f64 / all.max(1) as f64;
            let weight = self.weight(owner);
            let new = self.account(owner);
            let account = self.accounts.entry(owner.clone()).or_insert(new);
            account.time += used / weight;
            account.seconds += used;
            account.lead = match what {
                Use::Training => (account.lead + used).min(used),
                Use::Sampling => (account.lead - used).max(-used),
            };
        }
    }

    /// Who of two is served first.
    pub fn order(&self, a: &OwnerId, b: &OwnerId) -> Ordering {
        self.account(a).time.total_cmp(&self.account(b).time)
    }

    /// Whether `sampler`'s sampling comes before the training of `trainers`, all of whom wait or work.
    pub fn sampling_first(&self, sampler: &OwnerId, trainers: &[OwnerId]) -> bool {
        let Some(first) = trainers.iter().min_by(|a, b| self.order(a, b)) else { return true };
        if trainers.contains(sampler) && self.order(sampler, first) == Ordering::Equal {
            return self.account(sampler).lead > 0.0;
        }
        // Of equals the shorter piece of work.
        self.order(sampler, first) != Ordering::Greater
    }

    fn account(&self, owner: &OwnerId) -> Account {
        self.accounts.get(owner).copied().unwrap_or(Account { time: self.now, ..Account::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> OwnerId {
        OwnerId(name.into())
    }

    /// Serves whoever is next, each time for `cost` seconds: → how often each of `owners` was.
    fn serve(shares: &mut Shares, owners: &[&str], cost: f64, times: usize) -> Vec<usize> {
        let ids: Vec<OwnerId> = owners.iter().map(|o| owner(o)).collect();
        let mut served = vec![0; ids.len()];
        for _ in 0..times {
            let next = (0..ids.len()).min_by(|a, b| shares.order(&ids[*a], &ids[*b])).unwrap();
            shares.serve(&ids[next]);
            shares.charge(Use::Training, &[(ids[next].clone(), 1)], cost);
            served[next] += 1;
        }
        served
    }

    #[test]
    fn time_is_shared_by_weight() {
        let mut shares = Shares::default();
        shares.set_weights(HashMap::from([(owner("b"), 3.0), (owner("c"), f64::NAN)]));
        assert_eq!(serve(&mut shares, &["a", "b", "c"], 1.0, 50), [10, 30, 10]);
        assert_eq!((shares.seconds(&owner("b")), shares.weight(&owner("c"))), (30.0, 1.0));
    }

    #[test]
    fn a_newcomer_is_next_and_idling_saves_nothing_up() {
        let mut shares = Shares::default();
        serve(&mut shares, &["flood"], 2.0, 1000);
        shares.arrive(&owner("new"));
        assert_eq!(shares.order(&owner("new"), &owner("flood")), Ordering::Less);
        assert_eq!(serve(&mut shares, &["flood", "new"], 2.0, 10), [5, 5], "from here on they take turns");
    }

    #[test]
    fn who_could_not_be_served_for_long_does_not_keep_newcomers_waiting() {
        let mut shares = Shares::default();
        shares.arrive(&owner("blocked"));
        serve(&mut shares, &["flood"], 2.0, 100);
        assert_eq!(serve(&mut shares, &["flood", "blocked"], 2.0, 1), [0, 1]);
        shares.arrive(&owner("new"));
        assert_eq!(serve(&mut shares, &["flood", "blocked", "new"], 2.0, 3), [1, 1, 1]);
    }

    #[test]
    fn a_shared_pass_is_charged_by_parts() {
        let mut shares = Shares::default();
        shares.charge(Use::Training, &[(owner("a"), 30), (owner("b"), 10)], 4.0);
        assert_eq!((shares.seconds(&owner("a")), shares.seconds(&owner("b"))), (3.0, 1.0));
    }

    #[test]
    fn one_owners_training_and_sampling_take_turns_and_owe_one_piece_at_most() {
        let mut shares = Shares::default();
        let me = owner("me");
        let mine = std::slice::from_ref(&me);
        assert!(!shares.sampling_first(&me, mine));
        for _ in 0..100 {
            shares.charge(Use::Training, &[(me.clone(), 1)], 2.0);
        }
        for _ in 0..4 {
            assert!(shares.sampling_first(&me, mine));
            shares.charge(Use::Sampling, &[(me.clone(), 1)], 0.5);
        }
        assert!(!shares.sampling_first(&me, mine), "as much sampling as the last piece of training");
        assert!(shares.sampling_first(&owner("other"), mine), "who used less");
        assert!(shares.sampling_first(&me, &[]));
    }
}
