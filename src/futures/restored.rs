//! What an earlier process left in the ledger, sorted: answers to be fetched, requests to be done, and the runs they are of.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::command::{Command, RunCommand, Save};
use crate::ids::{ModelId, RequestId};
use crate::wal::RecordId;

use super::ledger::{Index, place};
use super::records::{Accepted, Answered, Record};
use super::state::Answer;

#[derive(Default)]
pub struct Restored {
    /// In the order in which they were given.
    pub answers: Vec<Answered>,
    /// Unanswered requests that are no run's.
    pub open: HashMap<RequestId, Accepted>,
    /// Unanswered requests of runs that have ended.
    pub orphans: Vec<Accepted>,
    pub runs: HashMap<ModelId, RestoredRun>,
    pub ended: HashSet<ModelId>,
}

/// What was asked of a run since its state on disk, and some of what was asked before.
#[derive(Default)]
pub struct RestoredRun {
    pub requests: BTreeMap<u64, Accepted>,
    /// Whether they succeeded.
    pub answered: BTreeMap<u64, bool>,
    pub refused: BTreeSet<u64>,
    /// Ranges of numbers it went on without.
    pub gave_up: Vec<std::ops::Range<u64>>,
}

impl Restored {
    /// Takes the next record → the records that it makes superfluous.
    pub(super) fn take(&mut self, index: &mut Index, record: RecordId, read: Record) -> Vec<RecordId> {
        match read {
            Record::Accepted(accepted) => match place(&accepted.key) {
                Some((model, seq)) => {
                    let run = index.runs.entry(model.clone()).or_default();
                    run.open.insert(seq);
                    run.needed.entry(seq).or_default().push(record);
                    self.runs.entry(model).or_default().requests.insert(seq, *accepted);
                }
                None => {
                    index.open.insert(accepted.id.clone(), record);
                    self.open.insert(accepted.id.clone(), *accepted);
                }
            },
            Record::Answered(answered) => return self.answered(index, record, *answered),
            Record::Refused { model, seq } => {
                index.runs.entry(model.clone()).or_default().needed.entry(seq).or_default().push(record);
                self.runs.entry(model).or_default().refused.insert(seq);
            }
            Record::GaveUp { model, from, next } => {
                index.runs.entry(model.clone()).or_default().needed.entry(next - 1).or_default().push(record);
                self.runs.entry(model).or_default().gave_up.push(from..next);
            }
            Record::Ended { model } => {
                let mut superfluous = self.end(index, &model);
                superfluous.push(record);
                return superfluous;
            }
        }
        Vec::new()
    }

    fn answered(&mut self, index: &mut Index, record: RecordId, answered: Answered) -> Vec<RecordId> {
        let mut superfluous: Vec<RecordId> = index.answers.insert(answered.id.clone(), record).into_iter().collect();
        match place(&answered.key) {
            Some((model, seq)) => {
                if let Some(run) = index.runs.get_mut(&model) {
                    run.open.remove(&seq);
                }
                self.runs.entry(model).or_default().answered.insert(seq, answered.result.is_ok());
            }
            None => {
                superfluous.extend(index.open.remove(&answered.id));
                self.open.remove(&answered.id);
            }
        }
        if let Ok(Answer::Unloaded { model }) = &answered.result {
            superfluous.extend(self.end(index, model));
        }
        self.answers.push(answered);
        superfluous
    }

    /// The run is gone.
    fn end(&mut self, index: &mut Index, model: &ModelId) -> Vec<RecordId> {
        self.ended.insert(model.clone());
        if let Some(run) = self.runs.remove(model) {
            let RestoredRun { requests, answered, .. } = run;
            let open = requests.into_iter().filter(|(seq, _)| !answered.contains_key(seq));
            self.orphans.extend(open.map(|(_, accepted)| accepted));
        }
        let needed = index.runs.remove(model).map(|run| run.needed).unwrap_or_default();
        needed.into_values().flatten().collect()
    }
}

impl RestoredRun {
    /// The highest number that anything is known of.
    pub fn last(&self) -> u64 {
        let ends = [
            self.requests.keys().next_back().copied(),
            self.answered.keys().next_back().copied(),
            self.refused.last().copied(),
            self.gave_up.iter().map(|r| r.end - 1).max(),
        ];
        ends.into_iter().flatten().max().unwrap_or(0)
    }

    /// Whether this number will never come.
    pub fn skips(&self, seq: u64) -> bool {
        self.refused.contains(&seq) || self.gave_up.iter().any(|range| range.contains(&seq))
    }

    /// The first number from `next` on that is missing although a later one was done: what was asked there is lost.
    pub fn hole(&self, next: u64) -> Option<u64> {
        let done = self.answered.keys().next_back().copied()?;
        (next..done).find(|seq| !self.requests.contains_key(seq) && !self.skips(*seq))
    }

    /// Whether an answered request must be done again on a state from before it.
    pub fn repeats(&self, seq: u64, command: &Command) -> bool {
        let Command::Run { command, .. } = command else { return false };
        let succeeded = self.answered.get(&seq).copied().unwrap_or(false);
        match command {
            RunCommand::OptimStep(_) => true,
            RunCommand::ForwardBackward { forward_only, .. } => succeeded && !forward_only,
            RunCommand::Load(_) | RunCommand::Save(Save::Snapshot { .. } | Save::Inflight { .. }) => succeeded,
            _ => false,
        }
    }
}
