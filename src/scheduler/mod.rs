//! What runs next: a pure function of what was submitted. No clock, no I/O, no tensors.
//!
//! A run's requests take effect in the order of their `seq_id`. Forward and backward work of many runs on the same
//! weights is packed into passes up to a token budget; everything else is a barrier inside its run.

mod pass;
mod queue;

use std::collections::{HashMap, VecDeque};

use crate::ids::ModelId;

pub use pass::{Item, Pass};
use queue::RunQueue;

/// Runs with the same lane can share a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Which weights the pass runs over.
    pub weights: u64,
    pub forward_only: bool,
}

/// What the scheduler needs to know of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Tokens of each datum.
    Data { lane: Lane, tokens: Vec<usize> },
    /// Anything that must see all earlier requests of its run done, and none of the later ones begun.
    Barrier,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Pass(Pass),
    Barrier { model: ModelId, seq: u64 },
}

/// All runs' queues.
pub struct Scheduler {
    runs: HashMap<ModelId, RunQueue>,
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
    pub fn open(&mut self, model: ModelId, first: u64) {
        self.turn.push_back(model.clone());
        self.runs.insert(model, RunQueue::new(first));
    }

    /// Forgets a run; gives the numbers of what still waited.
    pub fn close(&mut self, model: &ModelId) -> Vec<u64> {
        self.turn.retain(|m| m != model);
        self.runs.remove(model).map(RunQueue::into_numbers).unwrap_or_default()
    }

    pub fn is_open(&self, model: &ModelId) -> bool {
        self.runs.contains_key(model)
    }

    /// Queues a request. False when its number lies behind what was already done, or is taken.
    pub fn push(&mut self, model: &ModelId, seq: u64, job: Job) -> bool {
        self.runs.get_mut(model).is_some_and(|q| q.push(seq, job))
    }

    /// This number will never come.
    pub fn skip(&mut self, model: &ModelId, seq: u64) {
        if let Some(q) = self.runs.get_mut(model) {
            q.skip(seq);
        }
    }

    /// The numbers a run waits for will never come: it goes on with the lowest that has.
    pub fn skip_gap(&mut self, model: &ModelId) {
        if let Some(q) = self.runs.get_mut(model) {
            q.skip_gap();
        }
    }

    /// Runs that wait for a number nobody has sent, with that number.
    pub fn gaps(&self) -> Vec<(ModelId, u64)> {
        self.runs.iter().filter_map(|(m, q)| q.gap().map(|seq| (m.clone(), seq))).collect()
    }

    pub fn is_idle(&self) -> bool {
        self.runs.values().all(|q| q.ready().is_none())
    }

    /// The next piece of work. Barriers are given out one at a time; the caller runs each before asking again.
    pub fn next_work(&mut self) -> Option<Work> {
        let at = self.turn.iter().position(|m| self.runs[m].ready().is_some())?;
        let model = self.turn.remove(at).expect("just found");
        self.turn.push_back(model.clone());
        let queue = self.runs.get_mut(&model).expect("every run in turn has a queue");
        if let Some(seq) = queue.take_barrier() {
            return Some(Work::Barrier { model, seq });
        }
        Some(Work::Pass(self.form_pass(model)))
    }
}
