//! New promises: the same natural key gives the same promise (protocol §11.3).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::accounts::tally;
use crate::command::{Command, RunCommand};
use crate::engine::handle::NOW;
use crate::error::{Error, Result};
use crate::ids::{ModelId, OwnerId, RequestId, SamplerId, SessionId};

use super::Futures;
use super::admission::Permit;
use super::complete::{Completion, Guard};
use super::journal::kind;
use super::pace::Paused;
use super::state::Answer;
use super::table::{Claim, Table};

/// What makes two requests the same request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    CustomLoss {
        session: SessionId,
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
            Self::CustomLoss { session, seq } => write!(f, "custom_loss_seq_id {seq} of session {session}"),
        }
    }
}

/// A checked request, ready for the engine.
pub struct Request {
    /// Becomes the promise's, unless the request is a repeat.
    pub id: RequestId,
    pub owner: OwnerId,
    pub key: Key,
    /// Fingerprint of the request, from `meaning`.
    pub meaning: u64,
    pub command: Command,
    pub completion: Completion,
    /// Its share of the room for pending work, held until the promise settles.
    pub permit: Option<Permit>,
}

/// The promise of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Issued {
    pub id: RequestId,
    /// False for a repeat.
    pub new: bool,
}

impl Futures {
    /// The promise this key already has. A user error when the key stands for another or a refused request.
    pub fn find(&self, key: &Key, meaning: u64) -> Result<Option<RequestId>> {
        find(&self.lock(), key, meaning)
    }

    /// The promise of this request; submits it to the engine unless it is a repeat.
    pub fn issue(&self, request: Request) -> Result<Issued> {
        let Request { id, owner, key, meaning, command, completion, permit } = request;
        {
            let mut table = self.lock();
            if let Some(id) = find(&table, &key, meaning)? {
                return Ok(Issued { id, new: false });
            }
            table.insert(id.clone(), owner.clone(), (kind(&completion), key.clone()), meaning);
        }
        // From here on a killed process does not lose it.
        if let Err(e) = self.ledger.accept((&id, &owner), (&key, meaning), &command, &completion) {
            self.lock().remove(&id);
            return Err(e);
        }
        tracing::debug!(request = %id, "issued");
        let guard = Guard::new(self.clone(), id.clone(), &key, &command, completion, permit);
        let tokens = tally::tokens(&command);
        let (futures, promise) = (self.clone(), id.clone());
        let submit: Box<dyn FnOnce() + Send> = Box::new(move || {
            let ticket = futures.engine.submit(command, Box::new(move |outcome| guard.reply(outcome)));
            if let Some(promise) = futures.lock().promises.get_mut(&promise) {
                promise.ticket = Some(ticket);
            }
        });
        match key {
            // Admitted by its handler, which can tell the client to come again. A loss is no work: see `kept`.
            Key::Sample { .. } | Key::CustomLoss { .. } => submit(),
            Key::Unload { model } => {
                self.ends(&model);
                submit();
            }
            Key::Creation { session, model_seq } => {
                let paused = Paused { id: id.clone(), run: session.model(model_seq), seq: 0, tokens, submit };
                self.pace.pass(&owner, paused, &self.runtime);
            }
            Key::Run { model, seq } => {
                let paused = Paused { id: id.clone(), run: model, seq, tokens, submit };
                self.pace.pass(&owner, paused, &self.runtime);
            }
        }
        Ok(Issued { id, new: true })
    }

    /// The promise of work of this kind that is done already and needs no engine. A repeat's keeps the answer it has.
    pub fn kept(&self, owner: OwnerId, work: (&'static str, Key), meaning: u64, answer: Answer) -> Result<RequestId> {
        let id = RequestId::random();
        {
            let mut table = self.lock();
            if let Some(id) = find(&table, &work.1, meaning)? {
                return Ok(id);
            }
            table.insert(id.clone(), owner, work, meaning);
        }
        self.settle(&id, Ok(answer));
        Ok(id)
    }

    /// A request under this number was refused at the door, so nobody may wait for it (protocol §11.2 rule 4).
    pub fn refuse(&self, model: ModelId, seq: u64) {
        if self.lock().refuse(&model, seq) {
            self.ledger.refuse(&model, seq);
            self.engine.skip(model, seq);
        }
    }

    /// Free the run in the engine now, whatever waits there; nobody asks for the outcome.
    pub fn unload(&self, owner: OwnerId, model: ModelId) {
        self.ends(&model);
        let name = model.clone();
        let command = Command::Run { owner, model, seq: NOW, command: RunCommand::Unload };
        let reply = move |outcome: Result<_>| {
            if let Err(e) = outcome {
                tracing::debug!(run = %name, error = %e, "run was not unloaded");
            }
        };
        self.engine.submit(command, Box::new(reply));
    }

    /// The run is about to leave the engine: its account may have another.
    fn ends(&self, model: &ModelId) {
        self.pace.release(model);
        self.runs.end(model);
    }
}

fn find(table: &Table, key: &Key, meaning: u64) -> Result<Option<RequestId>> {
    match table.keys.get(key) {
        Some(Claim { id, meaning: m }) if *m == meaning => Ok(Some(id.clone())),
        Some(_) => Err(Error::user(format!("{key} was used by a different request; take the next number"))),
        None if table.was_refused(key) => {
            Err(Error::user(format!("{key} was used by a request that was refused; take the next number")))
        }
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Outcome;
    use crate::futures::testing::{Rig, owner, run, step};
    use crate::ids::LossId;

    #[tokio::test]
    async fn a_repeat_gets_the_same_promise_and_is_not_submitted_again() {
        let rig = Rig::new().await;
        let first = rig.futures.issue(step(1, 7)).unwrap();
        assert!(first.new);
        let again = Issued { new: false, ..first };
        assert_eq!(rig.futures.issue(step(1, 7)).unwrap(), again);
        assert_eq!(rig.submitted(), 1);
        rig.answer(Err(Error::user("no")));
        assert_eq!(rig.futures.issue(step(1, 7)).unwrap(), again);
        assert_ne!(rig.futures.issue(step(2, 7)).unwrap().id, again.id);
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

    #[tokio::test]
    async fn what_is_kept_at_once_is_in_the_journal_once() {
        let rig = Rig::new().await;
        let session = SessionId("s".into());
        let kept = |loss: &str| {
            let key = Key::CustomLoss { session: session.clone(), seq: 3 };
            rig.futures.kept(owner(), ("create_custom_loss", key), 7, Answer::LossKept { loss: LossId(loss.into()) })
        };
        let id = kept("a").unwrap();
        assert_eq!(kept("b").unwrap(), id);
        let [entry] = &rig.futures.journal_of(&session)[..] else { panic!("one entry") };
        assert_eq!((&entry.id, entry.kind, &entry.failure), (&id, "create_custom_loss", &None));
    }

    #[tokio::test]
    async fn a_permit_is_held_until_the_promise_settles() {
        let rig = Rig::new().await;
        let permit = rig.futures.admission().enter(&owner()).unwrap();
        rig.futures.issue(Request { permit: Some(permit), ..step(1, 7) }).unwrap();
        assert!(rig.futures.admission().enter(&owner()).is_err(), "the rig has room for one");
        rig.answer(Ok(Outcome::OptimStep { metrics: vec![] }));
        assert!(rig.futures.admission().enter(&owner()).is_ok());
    }

    #[tokio::test]
    async fn only_an_owners_samples_are_cancelled() {
        let rig = Rig::new().await;
        let training = rig.futures.issue(step(1, 7)).unwrap().id;
        let key = Key::Sample { sampler: SamplerId("s:sample:0".into()), seq: 0 };
        let sample = rig.futures.issue(Request { key, ..step(2, 7) }).unwrap().id;
        let other = OwnerId("other".into());
        for (id, who) in [(&training, &owner()), (&sample, &other), (&RequestId::random(), &owner())] {
            rig.futures.cancel(id, who);
        }
        assert!(rig.cancelled().is_empty());
        rig.futures.cancel(&sample, &owner());
        assert_eq!(rig.cancelled(), [sample]);
    }
}
