//! The long poll: a result, a failure, or "not yet" (protocol §10.2, §10.3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::load::{Load, Wait};
use crate::error::Error;
use crate::ids::{OwnerId, RequestId, SamplerId};

use super::Futures;
use super::issue::Key;
use super::state::{Answer, State};
use super::table::Promise;

pub enum Poll {
    Done(Arc<Answer>),
    Failed(Error),
    /// Not done after the wait: ask again. Why, when it waits for its turn or for something else.
    Pending(Option<Wait>),
    /// Never issued, somebody else's, or forgotten.
    Unknown,
}

impl Futures {
    /// Why this request of the owner waits at its account's quota; `None` when it does not.
    pub fn paused(&self, id: &RequestId, owner: &OwnerId) -> Option<String> {
        self.pace.reason(owner, id)
    }

    /// Wait up to `wait` for the promise to settle. Dropping the future frees the waiter.
    pub async fn retrieve(&self, id: &RequestId, owner: &OwnerId, wait: Duration) -> Poll {
        let Some(mut settled) = self.watch(id, owner) else { return Poll::Unknown };
        let mut closing = self.closing.subscribe();
        tokio::select! {
            _ = settled.wait_for(|done| *done) => {}
            _ = closing.wait_for(|closing| *closing) => {}
            () = tokio::time::sleep(wait) => {}
        }
        self.read(id)
    }

    /// A sample by the number its client gave it, without waiting.
    pub fn sample(&self, sampler: &SamplerId, seq: u64, owner: &OwnerId) -> Poll {
        let id = {
            let table = self.lock();
            let claim = table.keys.get(&Key::Sample { sampler: sampler.clone(), seq });
            let own = |id: &RequestId| table.promises.get(id).is_some_and(|p| p.owner == *owner);
            claim.map(|c| c.id.clone()).filter(own)
        };
        id.map_or(Poll::Unknown, |id| self.read(&id))
    }

    /// What the engine says an unfinished request waits for.
    pub fn waits_for(&self, id: &RequestId) -> Option<Wait> {
        let load = self.engine.load();
        self.lock().promises.get(id).and_then(|promise| wait_of(&load, promise))
    }

    fn watch(&self, id: &RequestId, owner: &OwnerId) -> Option<tokio::sync::watch::Receiver<bool>> {
        let table = self.lock();
        let promise = table.promises.get(id).filter(|p| p.owner == *owner)?;
        Some(promise.settled.subscribe())
    }

    fn read(&self, id: &RequestId) -> Poll {
        let load = self.engine.load();
        let mut table = self.lock();
        let Some(promise) = table.promises.get_mut(id) else { return Poll::Unknown };
        let poll = match &promise.state {
            State::Pending => return Poll::Pending(wait_of(&load, promise)),
            State::Done(answer) => Poll::Done(answer.clone()),
            State::Failed(e) => Poll::Failed(e.clone()),
            State::Expired => return Poll::Unknown,
        };
        promise.retrieved_at = Some(Instant::now());
        poll
    }
}

fn wait_of(load: &Load, promise: &Promise) -> Option<Wait> {
    match (&promise.key, promise.ticket) {
        (Key::Run { model, seq }, _) => load.of_run(&promise.owner, model, *seq),
        // A run that is yet to be created is asked for by its first number.
        (Key::Creation { session, model_seq }, _) => load.of_run(&promise.owner, &session.model(*model_seq), 0),
        (Key::Sample { .. }, Some(ticket)) => load.of_sample(&promise.owner, ticket),
        (Key::Sample { .. } | Key::Unload { .. } | Key::CustomLoss { .. }, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Outcome;
    use crate::futures::testing::{Rig, owner, step};

    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_waiting_poll_wakes_when_the_work_is_done() {
        let rig = Rig::new().await;
        let id = rig.futures.issue(step(1, 7)).unwrap().id;
        assert!(matches!(rig.futures.retrieve(&id, &owner(), SOON).await, Poll::Pending(None)));
        let polling = {
            let (futures, id) = (rig.futures.clone(), id.clone());
            tokio::spawn(async move { futures.retrieve(&id, &owner(), Duration::from_secs(30)).await })
        };
        tokio::task::yield_now().await;
        rig.answer(Ok(Outcome::OptimStep { metrics: vec![] }));
        assert!(matches!(polling.await.unwrap(), Poll::Done(_)));
        // And again: a client may have lost the answer.
        assert!(matches!(rig.futures.retrieve(&id, &owner(), SOON).await, Poll::Done(_)));
    }

    #[tokio::test]
    async fn other_peoples_promises_are_unknown() {
        let rig = Rig::new().await;
        let id = rig.futures.issue(step(1, 7)).unwrap().id;
        let other = OwnerId("other".into());
        assert!(matches!(rig.futures.retrieve(&id, &other, SOON).await, Poll::Unknown));
        assert!(matches!(rig.futures.retrieve(&RequestId::random(), &owner(), SOON).await, Poll::Unknown));
    }

    #[tokio::test]
    async fn closing_ends_every_poll() {
        let rig = Rig::new().await;
        let id = rig.futures.issue(step(1, 7)).unwrap().id;
        rig.futures.close();
        assert!(matches!(rig.futures.retrieve(&id, &owner(), Duration::from_secs(30)).await, Poll::Pending(None)));
    }
}
