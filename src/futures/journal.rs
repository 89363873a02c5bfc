//! A journal of the requests of each session: when each began and ended, and with what metrics. Kept in memory since
//! the server's start, for exports of a session.

use std::collections::{HashMap, VecDeque};

use chrono::{DateTime, Utc};

use crate::error::Result;
use crate::ids::{RequestId, SessionId};

use super::complete::Completion;
use super::issue::Key;
use super::state::Answer;
use super::table::Promise;

/// Entries of one session, and of all together; the oldest of the longest session go first.
const MAX_OF_SESSION: usize = 10_000;
const MAX: usize = 50_000;

/// A request that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub id: RequestId,
    /// The endpoint: `forward_backward`, `asample`, …
    pub kind: &'static str,
    pub key: Key,
    pub began: DateTime<Utc>,
    pub ended: DateTime<Utc>,
    /// Why it failed.
    pub failure: Option<String>,
    pub metrics: Vec<(String, f64)>,
}

impl Entry {
    /// Of a promise that ends now.
    pub(super) fn new(id: &RequestId, promise: &Promise, result: &Result<Answer>) -> Self {
        let metrics = match result {
            Ok(Answer::ForwardBackward { metrics, .. } | Answer::OptimStep { metrics }) => metrics.clone(),
            _ => Vec::new(),
        };
        Self {
            id: id.clone(),
            kind: promise.kind,
            key: promise.key.clone(),
            began: promise.began,
            ended: Utc::now(),
            failure: result.as_ref().err().map(|e| e.message.clone()),
            metrics,
        }
    }
}

#[derive(Default)]
pub(super) struct Journal {
    ended: HashMap<SessionId, VecDeque<Entry>>,
    len: usize,
}

impl Journal {
    pub fn push(&mut self, entry: Entry) {
        let entries = self.ended.entry(session_of(&entry.key)).or_default();
        entries.push_back(entry);
        self.len += 1;
        if entries.len() > MAX_OF_SESSION {
            entries.pop_front();
            self.len -= 1;
        }
        if self.len > MAX {
            self.shrink();
        }
    }

    /// A session's ended requests, in the order in which they ended.
    pub fn of(&self, session: &SessionId) -> Vec<Entry> {
        self.ended.get(session).into_iter().flatten().cloned().collect()
    }

    /// Halves the longest session.
    fn shrink(&mut self) {
        let Some(longest) = self.ended.iter().max_by_key(|(_, e)| e.len()).map(|(id, _)| id.clone()) else { return };
        let entries = self.ended.get_mut(&longest).expect("just seen");
        let gone = entries.len().div_ceil(2);
        entries.drain(..gone);
        self.len -= gone;
        if entries.is_empty() {
            self.ended.remove(&longest);
        }
    }
}

/// The endpoint of the optimiser's steps.
pub(super) const OPTIM_STEP: &str = "optim_step";

/// The endpoints whose promises stand in the ledger.
const KINDS: [&str; 9] = [
    "create_model",
    "load_weights",
    "forward_backward",
    OPTIM_STEP,
    "save_weights",
    "save_weights_for_sampler",
    "unload_model",
    "asample",
    "create_custom_loss",
];

/// The endpoint that leads to this completion.
pub(super) fn kind(completion: &Completion) -> &'static str {
    match completion {
        Completion::Create { path: None, .. } => "create_model",
        Completion::Create { path: Some(_), .. } | Completion::Load { .. } => "load_weights",
        Completion::ForwardBackward => "forward_backward",
        Completion::OptimStep => OPTIM_STEP,
        Completion::Save { .. } => "save_weights",
        Completion::Snapshot(_) => "save_weights_for_sampler",
        Completion::Unload { .. } => "unload_model",
        Completion::Sample { .. } => "asample",
    }
}

/// The endpoint of this name.
pub fn known_kind(name: &str) -> Option<&'static str> {
    KINDS.iter().find(|kind| **kind == name).copied()
}

fn session_of(key: &Key) -> SessionId {
    let id = match key {
        Key::Creation { session, .. } | Key::CustomLoss { session, .. } => return session.clone(),
        Key::Run { model, .. } | Key::Unload { model } => &model.0,
        Key::Sample { sampler, .. } => &sampler.0,
    };
    SessionId(id.split(':').next().unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::futures::table::Table;
    use crate::futures::testing::owner;
    use crate::ids::ModelId;

    fn end(journal: &mut Journal, session: &str, seq: u64, result: &Result<Answer>) {
        let (id, key) = (RequestId::random(), Key::Run { model: ModelId(format!("{session}:train:0")), seq });
        let mut table = Table::default();
        table.insert(id.clone(), owner(), (kind(&Completion::OptimStep), key), 0);
        journal.push(table.settle(&id, result.clone(), usize::MAX).unwrap());
        assert!(table.settle(&id, result.clone(), usize::MAX).is_none(), "it ends once");
    }

    #[test]
    fn an_entry_has_its_times_metrics_and_failure() {
        let mut journal = Journal::default();
        let metrics = vec![("grad_norm".to_owned(), 0.5)];
        end(&mut journal, "s", 1, &Ok(Answer::OptimStep { metrics: metrics.clone() }));
        end(&mut journal, "s", 2, &Err(Error::user("too long")));
        end(&mut journal, "t", 1, &Err(Error::user("other")));
        let [first, second] = &journal.of(&SessionId("s".into()))[..] else { panic!("two entries") };
        assert_eq!((first.kind, &first.metrics, &first.failure), ("optim_step", &metrics, &None));
        assert!(first.began <= first.ended);
        assert_eq!(second.failure.as_deref(), Some("too long"));
    }

    #[test]
    fn the_longest_session_makes_room() {
        let mut journal = Journal::default();
        let ok = Ok(Answer::OptimStep { metrics: vec![] });
        end(&mut journal, "small", 1, &ok);
        for session in 0..6 {
            for seq in 0..MAX_OF_SESSION as u64 + 1 {
                end(&mut journal, &session.to_string(), seq, &ok);
            }
        }
        assert!(journal.len <= MAX);
        assert_eq!(journal.len, journal.ended.values().map(VecDeque::len).sum::<usize>());
        assert_eq!(journal.of(&SessionId("small".into())).len(), 1);
    }
}
