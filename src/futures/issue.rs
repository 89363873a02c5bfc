//! New promises: the same natural key gives the same promise (protocol §11.3).

use std::fmt;

use tokio::sync::watch;

use crate::command::{Command, RunCommand};
use crate::engine::handle::NOW;
use crate::error::{Error, Result};
use crate::ids::{ModelId, OwnerId, RequestId, SamplerId, SessionId};

use super::complete::{Completion, Guard};
use super::state::State;
use super::{Claim, Futures, Promise};

/// What makes two requests the same request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// `create_model`, and `load_weights` that creates.
    Creation {
        session: SessionId,
        model_seq: u64,
    },
    /// Everything with `model_id` and `seq_id`.
    Run {
        model: ModelId,
        seq: u64,
    },
    Unload {
        model: ModelId,
    },
    Sample {
        sampler: SamplerId,
        seq: u64,
    },
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Creation { session, model_seq } => write!(f, "model_seq_id {model_seq} of session {session}"),
            Self::Run { model, seq } => write!(f, "seq_id {seq} of run {model}"),
            Self::Unload { model } => write!(f, "unloading of run {model}"),
            Self::Sample { sampler, seq } => write!(f, "seq_id {seq} of sampler {sampler}"),
        }
    }
}

/// A checked request, ready for the engine.
pub struct Request {
    pub owner: OwnerId,
    pub key: Key,
    /// Fingerprint of the request, from `meaning`.
    pub meaning: u64,
    pub command: Command,
    pub completion: Completion,
}

impl Futures {
    /// The promise this key already has. A user error when the key stands for another or a refused request.
    pub fn find(&self, key: &Key, meaning: u64) -> Result<Option<RequestId>> {
        find(&self.lock(), key, meaning)
    }

    /// The promise of this request; submits it to the engine unless it is a repeat.
    pub fn issue(&self, request: Request) -> Result<RequestId> {
        let Request { owner, key, meaning, command, completion } = request;
        let id = {
            let mut table = self.lock();
            if let Some(id) = find(&table, &key, meaning)? {
                return Ok(id);
            }
            let id = RequestId::random();
            table.keys.insert(key.clone(), Claim::Issued { id: id.clone(), meaning });
            let settled = watch::channel(false).0;
            let promise = Promise { owner, key, state: State::Pending, settled, settled_at: None, retrieved_at: None };
            table.promises.insert(id.clone(), promise);
            id
        };
        tracing::debug!(request = %id, "issued");
        let guard = Guard::new(self.clone(), id.clone(), completion);
        self.engine.submit(command, Box::new(move |outcome| guard.reply(outcome)));
        Ok(id)
    }

    /// A request under this number was refused at the door, so nobody may wait for it (protocol §11.2 rule 4).
    pub fn refuse(&self, model: ModelId, seq: u64) {
        let key = Key::Run { model: model.clone(), seq };
        let mut table = self.lock();
        if table.keys.contains_key(&key) {
            return;
        }
        table.keys.insert(key, Claim::Refused);
        drop(table);
        self.engine.skip(model, seq);
    }

    /// Free the run in the engine now, whatever waits there; nobody asks for the outcome.
    pub fn unload(&self, model: ModelId) {
        let name = model.clone();
        let command = Command::Run { model, seq: NOW, command: RunCommand::Unload };
        let reply = move |outcome: Result<_>| {
            if let Err(e) = outcome {
                tracing::debug!(run = %name, error = %e, "run was not unloaded");
            }
        };
        self.engine.submit(command, Box::new(reply));
    }
}

fn find(table: &super::Table, key: &Key, meaning: u64) -> Result<Option<RequestId>> {
    match table.keys.get(key) {
        None => Ok(None),
        Some(Claim::Issued { id, meaning: m }) if *m == meaning => Ok(Some(id.clone())),
        Some(Claim::Issued { .. }) => {
            Err(Error::user(format!("{key} was used by a different request; take the next number")))
        }
        Some(Claim::Refused) => {
            Err(Error::user(format!("{key} was used by a request that was refused; take the next number")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::futures::testing::{Rig, run, step};

    #[tokio::test]
    async fn a_repeat_gets_the_same_promise_and_is_not_submitted_again() {
        let rig = Rig::new().await;
        let first = rig.futures.issue(step(1, 7)).unwrap();
        assert_eq!(rig.futures.issue(step(1, 7)).unwrap(), first);
        assert_eq!(rig.submitted(), 1);
        rig.answer(Err(Error::user("no")));
        assert_eq!(rig.futures.issue(step(1, 7)).unwrap(), first);
        assert_ne!(rig.futures.issue(step(2, 7)).unwrap(), first);
    }

    #[tokio::test]
    async fn another_meaning_under_a_used_number_is_refused() {
        let rig = Rig::new().await;
        rig.futures.issue(step(1, 7)).unwrap();
        let e = rig.futures.issue(step(1, 8)).unwrap_err();
        assert!(e.message.contains("seq_id 1"), "{e}");
    }

    #[tokio::test]
    async fn a_refused_number_is_spent_and_the_engine_knows() {
        let rig = Rig::new().await;
        rig.futures.refuse(run(), 1);
        rig.futures.refuse(run(), 1);
        assert_eq!(rig.skipped(), [(run(), 1)]);
        assert!(rig.futures.issue(step(1, 7)).unwrap_err().message.contains("refused"));
        rig.futures.issue(step(2, 7)).unwrap();
        // A wrong repeat of a good request does not spend the good one's number.
        rig.futures.refuse(run(), 2);
        assert!(rig.skipped().is_empty());
    }
}
