//! What runs next: a pure function of what was submitted. No clock, no I/O, no tensors.
//!
//! A run's requests take effect in the order of their `seq_id`. Forward and backward work of many runs on the same
//! weights is packed into passes up to a token budget; everything else is a barrier inside its run.

mod pass;
mod queue;
mod shares;

use std::collections::{HashMap, VecDeque};

use crate::ids::{ModelId, OwnerId};

pub use pass::{Item, Pass};
use queue::RunQueue;
pub use shares::{Shares, Use};

/// Runs with the same lane can share a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Which weights the pass runs over.
    pub weights: u64,
    pub forward_only: bool,
}

/// What the scheduler needs to know of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queued {
    /// Tokens of each datum.
    Data { lane: Lane, tokens: Vec<usize> },
    /// Anything that must see all earlier requests of its run done, and none of the later ones begun.
    Barrier,
    /// A barrier that also needs a writer.
    Save,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Pass(Pass),
    Barrier { model: ModelId, seq: u64 },
}

/// A run's requests, and whose they are.
struct Run {
    owner: OwnerId,
    queue: RunQueue,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lowest number that is not done.
    pub next: u64,
    /// Requests that wait or are worked on.
    pub waiting: usize,
    /// `next` has not come.
    pub gap: bool,
    /// `next` is a save.
    pub save: bool,
}

/// All runs' queues.
pub struct Scheduler {
    runs: HashMap<ModelId, Run>,
    /// Runs in turn; the one served last waits longest.
    turn: VecDeque<ModelId>,
    /// Most tokens of a pass, unless a single datum has more.
    pass_tokens: usize,
}

impl Scheduler {
    pub fn new(pass_tokens: usize) -> Self {
        Self { runs: HashMap::new(), turn: VecDeque::new(), pass_tokens }
    }

    /// A new run whose first request has number `first`.
    pub fn open(&mut self, model: ModelId, owner: OwnerId, first: u64) {
        self.turn.push_back(model.clone());
        self.runs.insert(model, Run { owner, queue: RunQueue::new(first) });
    }

    /// Forgets a run; gives the numbers of what still waited.
    pub fn close(&mut self, model: &ModelId) -> Vec<u64> {
        self.turn.retain(|m| m != model);
        self.runs.remove(model).map(|r| r.queue.into_numbers()).unwrap_or_default()
    }

    /// Gives up what waits of a run; gives its numbers.
    pub fn cancel(&mut self, model: &ModelId) -> Vec<u64> {
        self.runs.get_mut(model).map(|r| r.queue.cancel()).unwrap_or_default()
    }

    pub fn is_open(&self, model: &ModelId) -> bool {
        self.runs.contains_key(model)
    }

    pub fn owner(&self, model: &ModelId) -> Option<&OwnerId> {
        self.runs.get(model).map(|r| &r.owner)
    }

    /// Queues a request. False when its number lies behind what was already done, or is taken.
    pub fn push(&mut self, model: &ModelId, seq: u64, queued: Queued) -> bool {
        self.runs.get_mut(model).is_some_and(|r| r.queue.push(seq, queued))
    }

    /// This number will never come.
    pub fn skip(&mut self, model: &ModelId, seq: u64) {
        if let Some(r) = self.runs.get_mut(model) {
            r.queue.skip(seq);
        }
    }

    /// The numbers a run waits for will never come: it goes on with the lowest that has.
    pub fn skip_gap(&mut self, model: &ModelId) {
        if let Some(r) = self.runs.get_mut(model) {
            r.queue.skip_gap();
        }
    }

    /// Runs that wait for a number nobody has sent, with that number.
    pub fn gaps(&self) -> Vec<(ModelId, u64)> {
        self.runs.iter().filter_map(|(m, r)| r.queue.gap().map(|seq| (m.clone(), seq))).collect()
    }

    /// The lowest number of this run that was not begun or done.
    pub fn next_of(&self, model: &ModelId) -> Option<u64> {
        self.runs.get(model).map(|r| r.queue.next())
    }

    /// Every run with something that waits: whose it is, and where it stands.
    pub fn places(&self) -> impl Iterator<Item = (&ModelId, &OwnerId, Place)> {
        self.runs.iter().filter_map(|(m, r)| Some((m, &r.owner, r.queue.place()?)))
    }

    /// Whether this owner has anything that waits.
    pub fn has(&self, owner: &OwnerId) -> bool {
        self.runs.values().any(|r| r.owner == *owner && r.queue.place().is_some())
    }

    /// Whether saves wait that could be begun.
    pub fn saves_wait(&self) -> bool {
        self.runs.values().any(|r| r.queue.ready() == Some(&Queued::Save))
    }

    /// Whose work [`Self::next_work`] would give out. `may_save`: a writer is free.
    pub fn next_owner(&self, shares: &Shares, may_save: bool) -> Option<&OwnerId> {
        self.first(shares, may_save).map(|(_, owner)| owner)
    }

    /// The run to serve: of the owner who used least, the one that was served longest ago.
    fn first(&self, shares: &Shares, may_save: bool) -> Option<(usize, &OwnerId)> {
        let can_go = |(at, m)| -> Option<(usize, &OwnerId)> {
            let run: &Run = &self.runs[m];
            run.queue.ready().filter(|queued| may_save || **queued != Queued::Save).map(|_| (at, &run.owner))
        };
        self.turn.iter().enumerate().filter_map(can_go).min_by(|(_, a), (_, b)| shares.order(a, b))
    }

    /// The next piece of work. Barriers are given out one at a time; the caller runs each before asking again.
    pub fn next_work(&mut self, shares: &Shares, may_save: bool) -> Option<Work> {
        let (at, _) = self.first(shares, may_save)?;
        let model = self.turn.remove(at).expect("just found");
        self.turn.push_back(model.clone());
        let run = self.runs.get_mut(&model).expect("every run in turn has a queue");
        if let Some(seq) = run.queue.take_barrier() {
            return Some(Work::Barrier { model, seq });
        }
        Some(Work::Pass(self.form_pass(model, shares)))
    }
}
