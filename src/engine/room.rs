//! Slots and cache memory that are left for sequences, and who may take of them.

use std::cmp::Ordering;

use crate::engine::sample::Running;
use crate::ids::OwnerId;
use crate::scheduler::Shares;

pub struct Room {
    /// Sequences that may still begin.
    pub slots: usize,
    /// Values of keys and values that are not spoken for, of `all`.
    pub values: usize,
    pub all: usize,
    /// Nothing runs at all.
    pub idle: bool,
    pub running: Running,
    /// Owners who may begin nothing, so that memory comes free for somebody who used less and waits for it.
    pub withheld: Vec<OwnerId>,
}

impl Room {
    pub fn begun(&self, owner: &OwnerId) -> usize {
        self.running.get(owner).copied().unwrap_or(0)
    }

    /// Whether a request of this owner that needs so many values of cache may begin. An owner who has nothing running may
    /// always begin something small: what runs could hold slots and memory for long.
    pub fn admits(&self, owner: &OwnerId, need: usize) -> bool {
        let newcomer = self.begun(owner) == 0 && need <= self.all / 16;
        self.idle || newcomer || (self.slots > 0 && need <= self.values && !self.withheld.contains(owner))
    }

    /// A sequence begins.
    pub fn take(&mut self, owner: &OwnerId, need: usize) {
        self.values = self.values.saturating_sub(need);
        self.slots = self.slots.saturating_sub(1);
        self.idle = false;
        *self.running.entry(owner.clone()).or_default() += 1;
    }

    /// Withholds what is left from owners who used more than one who has nothing and finds no room.
    pub fn withhold<'a>(mut self, fronts: impl Iterator<Item = (&'a OwnerId, usize)>, shares: &Shares) -> Self {
        let claims = fronts.filter(|(o, need)| self.begun(o) == 0 && !self.admits(o, *need)).map(|(o, _)| o);
        if let Some(first) = claims.min_by(|a, b| shares.order(a, b)) {
            let more = |o: &&OwnerId| *o != first && shares.order(o, first) != Ordering::Less;
            self.withheld = self.running.keys().filter(more).cloned().collect();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Use;

    fn owner(name: &str) -> OwnerId {
        OwnerId(name.into())
    }

    fn room(slots: usize, values: usize) -> Room {
        let running = Running::from([(owner("flood"), 3), (owner("thrifty"), 1)]);
        Room { slots, values, all: 160, idle: false, running, withheld: Vec::new() }
    }

    #[test]
    fn a_newcomer_may_begin_something_small_however_full_it_is() {
        let full = room(0, 0);
        assert!(full.admits(&owner("new"), 10));
        assert!(!full.admits(&owner("new"), 11));
        assert!(!full.admits(&owner("flood"), 1));
        assert!(Room { idle: true, ..full }.admits(&owner("flood"), 1000));
    }

    #[test]
    fn memory_comes_free_for_who_used_less() {
        let mut shares = Shares::default();
        shares.charge(Use::Sampling, &[(owner("flood"), 1)], 5.0);
        shares.arrive(&owner("thrifty"));
        shares.charge(Use::Sampling, &[(owner("new"), 1)], 1.0);
        let room = room(4, 20).withhold([(&owner("new"), 50), (&owner("flood"), 5)].into_iter(), &shares);
        assert_eq!(room.withheld, [owner("flood")]);
        assert!(room.admits(&owner("thrifty"), 20) && !room.admits(&owner("flood"), 5));
    }
}
