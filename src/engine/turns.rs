//! Whose prompt is next: requests that wait, owner by owner.

use std::collections::{HashMap, VecDeque};

use crate::command::{Origin, SampleRequest};
use crate::engine::handle::{Events, Reply};
use crate::ids::OwnerId;

/// A request whose prompt still has to be run.
pub struct Waiting {
    pub origin: Origin,
    /// Counts submissions, in their order.
    pub ticket: u64,
    pub request: SampleRequest,
    pub reply: Reply,
    pub events: Option<Events>,
    /// Values of keys and values that its prompt and one sample may come to take.
    pub need: usize,
}

/// Requests in the order they came, per owner.
#[derive(Default)]
pub struct Turns {
    owners: HashMap<OwnerId, Owner>,
    /// Counts requests given out, to find who was served longest ago.
    given: u64,
}

#[derive(Default)]
struct Owner {
    waiting: VecDeque<Waiting>,
    served: u64,
}

impl Turns {
    pub fn push(&mut self, w: Waiting) {
        self.owners.entry(w.origin.owner.clone()).or_default().waiting.push_back(w);
    }

    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Each owner's next request.
    pub fn fronts(&self) -> impl Iterator<Item = (&OwnerId, &Waiting)> {
        self.owners.iter().filter_map(|(o, q)| Some((o, q.waiting.front()?)))
    }

    /// The tickets of what waits of each owner, rising.
    pub fn tickets(&self) -> impl Iterator<Item = (&OwnerId, Vec<u64>)> {
        self.owners.iter().map(|(o, q)| (o, q.waiting.iter().map(|w| w.ticket).collect()))
    }

    /// Takes the next request that `may_begin`: of the owner with the lowest `rank`, and among those of the one served
    /// longest ago.
    pub fn take(
        &mut self,
        rank: impl Fn(&OwnerId) -> f64,
        may_begin: impl Fn(&OwnerId, &Waiting) -> bool,
    ) -> Option<Waiting> {
        let open = self.owners.iter().filter(|(o, q)| q.waiting.front().is_some_and(|w| may_begin(o, w)));
        let before = |a: &(&OwnerId, &Owner), b: &(&OwnerId, &Owner)| {
            rank(a.0).total_cmp(&rank(b.0)).then(a.1.served.cmp(&b.1.served))
        };
        let next = open.min_by(before).map(|(o, _)| o.clone())?;
        self.given += 1;
        let owner = self.owners.get_mut(&next)?;
        owner.served = self.given;
        let taken = owner.waiting.pop_front();
        if owner.waiting.is_empty() {
            self.owners.remove(&next);
        }
        taken
    }

    /// Puts a request back in front of its owner's others.
    pub fn put_back(&mut self, w: Waiting) {
        self.owners.entry(w.origin.owner.clone()).or_default().waiting.push_front(w);
    }

    /// Takes out the requests that `gone` names.
    pub fn cancel(&mut self, gone: impl Fn(&Origin) -> bool) -> Vec<Waiting> {
        let mut out = Vec::new();
        for owner in self.owners.values_mut() {
            let (dropped, kept): (Vec<_>, _) =
                std::mem::take(&mut owner.waiting).into_iter().partition(|w| gone(&w.origin));
            owner.waiting = kept.into();
            out.extend(dropped);
        }
        self.owners.retain(|_, o| !o.waiting.is_empty());
        out
    }
}
