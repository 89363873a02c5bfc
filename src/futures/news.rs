//! News of many samples at once: for each sampler and clone a log of what has ended, which the client reads from a
//! cursor on and thereby acknowledges (protocol §10.7).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use chrono::Utc;
use tokio::sync::watch;

use crate::ids::{OwnerId, RequestId, SamplerId, SessionId};

use super::Futures;
use super::issue::Key;

/// Numbers of one clone of a sampling client: `clone * SPAN ..` (protocol §12.4).
const SPAN: u64 = 1_000_000_000;

/// Events of one answer; the rest comes with the next.
const AT_ONCE: usize = 4096;

/// A sampling client, original or clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub sampler: SamplerId,
    pub clone: u64,
}

impl Target {
    pub(super) fn of(key: &Key) -> Option<Self> {
        match key {
            Key::Sample { sampler, seq } => Some(Self { sampler: sampler.clone(), clone: seq / SPAN }),
            _ => None,
        }
    }
}

/// A sample has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: RequestId,
    /// Bytes of the result; `None` when the sample failed.
    pub size_bytes: Option<usize>,
}

/// Events after a cursor, and the cursor that stands behind the last of them.
#[derive(Debug, PartialEq, Eq)]
pub struct News {
    pub events: Vec<Event>,
    pub cursor: i64,
}

#[derive(Default)]
pub(super) struct Logs(HashMap<Target, Log>);

struct Log {
    events: BTreeMap<i64, Event>,
    /// The last cursor given out; waiting polls see it grow.
    last: watch::Sender<i64>,
    /// Whether anybody reads this log. What nobody reads is forgotten with its promise.
    read: bool,
}

impl Default for Log {
    fn default() -> Self {
        Self { events: BTreeMap::new(), last: watch::Sender::new(0), read: false }
    }
}

impl Logs {
    /// The cursor of the new event. Cursors follow the clock, so that those of a server before this one lie behind.
    pub fn push(&mut self, target: Target, event: Event) -> i64 {
        let log = self.0.entry(target).or_default();
        let cursor = (*log.last.borrow() + 1).max(Utc::now().timestamp_micros());
        log.events.insert(cursor, event);
        log.last.send_replace(cursor);
        cursor
    }

    /// What came after `seen`; everything up to it is acknowledged and forgotten.
    pub fn after(&mut self, target: &Target, seen: i64) -> News {
        let log = self.0.entry(target.clone()).or_default();
        log.read = true;
        log.events = log.events.split_off(&seen.saturating_add(1));
        let some = || log.events.iter().take(AT_ONCE);
        let cursor = some().next_back().map_or(seen, |(cursor, _)| *cursor);
        News { events: some().map(|(_, event)| event.clone()).collect(), cursor }
    }

    /// The promise is gone. A client that reads the log still hears of it, asks for the result, and learns that it is
    /// lost; otherwise it would wait for ever.
    pub fn forget(&mut self, target: &Target, cursor: i64) {
        if let Some(log) = self.0.get_mut(target)
            && !log.read
        {
            log.events.remove(&cursor);
            if log.events.is_empty() {
                self.0.remove(target);
            }
        }
    }

    pub fn forget_session(&mut self, session: &SessionId) {
        let prefix = format!("{session}:");
        self.0.retain(|target, _| !target.sampler.0.starts_with(&prefix));
    }

    fn watch(&mut self, target: &Target) -> watch::Receiver<i64> {
        self.0.entry(target.clone()).or_default().last.subscribe()
    }
}

impl Futures {
    /// Waits up to `wait` for news of this client that it has not `seen`. The caller has checked whose sampler it is.
    pub async fn news(&self, target: &Target, seen: i64, wait: Duration) -> News {
        let (news, mut last) = {
            let mut table = self.lock();
            (table.logs.after(target, seen), table.logs.watch(target))
        };
        if !news.events.is_empty() || wait.is_zero() {
            return news;
        }
        let mut closing = self.closing.subscribe();
        tokio::select! {
            _ = last.wait_for(|last| *last > seen) => {}
            _ = closing.wait_for(|closing| *closing) => {}
            () = tokio::time::sleep(wait) => {}
        }
        self.lock().logs.after(target, seen)
    }

    /// The client has these results of its samples and will not ask again.
    pub fn received(&self, target: &Target, owner: &OwnerId, ids: &[RequestId]) {
        let mut table = self.lock();
        for id in ids {
            let theirs = table.promises.get(id).is_some_and(|p| {
                p.owner == *owner && p.settled_at.is_some() && Target::of(&p.key).as_ref() == Some(target)
            });
            if theirs {
                table.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Outcome;
    use crate::error::Error;
    use crate::futures::issue::Request;
    use crate::futures::retrieve::Poll;
    use crate::futures::testing::{Rig, owner, step};

    fn target(clone: u64) -> Target {
        Target { sampler: SamplerId("s:sample:0".into()), clone }
    }

    /// A request of this number of the sampler; the rig's engine takes any command for it.
    fn sample(rig: &Rig, seq: u64) -> RequestId {
        let key = Key::Sample { sampler: SamplerId("s:sample:0".into()), seq };
        rig.futures.issue(Request { key, ..step(1, seq) }).unwrap().id
    }

    fn done(rig: &Rig) {
        rig.answer(Ok(Outcome::OptimStep { metrics: vec![] }));
    }

    #[tokio::test]
    async fn each_event_is_told_until_it_is_acknowledged() {
        let rig = Rig::new().await;
        let (first, second) = (sample(&rig, 0), sample(&rig, 1));
        done(&rig);
        rig.answer(Err(Error::user("no")));
        let news = rig.futures.news(&target(0), 0, Duration::ZERO).await;
        assert_eq!(news.events, [Event { id: first, size_bytes: Some(0) }, Event { id: second, size_bytes: None }]);
        // The answer was lost on the way: it is told again.
        assert_eq!(rig.futures.news(&target(0), 0, Duration::ZERO).await, news);
        let cursor = news.cursor;
        assert_eq!(rig.futures.news(&target(0), cursor, Duration::ZERO).await, News { events: vec![], cursor });
        assert_eq!(rig.futures.news(&target(0), 0, Duration::ZERO).await.events, [], "acknowledged ones are gone");
    }

    #[tokio::test]
    async fn clones_have_logs_of_their_own_and_a_waiting_poll_wakes() {
        let rig = Rig::new().await;
        let id = sample(&rig, 3 * SPAN + 1);
        let waiting = {
            let futures = rig.futures.clone();
            tokio::spawn(async move { futures.news(&target(3), 0, Duration::from_secs(30)).await })
        };
        tokio::task::yield_now().await;
        done(&rig);
        assert_eq!(waiting.await.unwrap().events[0].id, id);
        let other = rig.futures.news(&target(0), 7, Duration::from_millis(10)).await;
        assert_eq!(other, News { events: vec![], cursor: 7 });
    }

    #[tokio::test]
    async fn what_was_received_is_deleted_and_only_by_its_client() {
        let rig = Rig::new().await;
        let (done_one, waiting) = (sample(&rig, 0), sample(&rig, 1));
        done(&rig);
        let ids = [done_one.clone(), waiting.clone()];
        let poll = async |id| rig.futures.retrieve(id, &owner(), Duration::ZERO).await;
        rig.futures.received(&target(1), &owner(), &ids);
        rig.futures.received(&target(0), &OwnerId("other".into()), &ids);
        assert!(matches!(poll(&done_one).await, Poll::Done(_)));
        rig.futures.received(&target(0), &owner(), &ids);
        assert!(matches!(poll(&done_one).await, Poll::Unknown));
        assert!(matches!(poll(&waiting).await, Poll::Pending(_)));
    }

    #[test]
    fn a_log_nobody_reads_goes_with_its_promises_and_one_that_is_read_does_not() {
        let event = |id: &str| Event { id: RequestId(id.into()), size_bytes: Some(1) };
        let mut logs = Logs::default();
        let cursor = logs.push(target(0), event("a"));
        logs.forget(&target(0), cursor);
        assert!(logs.0.is_empty());
        let first = logs.push(target(0), event("a"));
        let second = logs.push(target(0), event("b"));
        assert!(second > first);
        assert_eq!(logs.after(&target(0), first).events, [event("b")]);
        logs.forget(&target(0), second);
        assert_eq!(logs.after(&target(0), first).events, [event("b")]);
        logs.forget_session(&SessionId("other".into()));
        assert_eq!(logs.0.len(), 1);
        logs.forget_session(&SessionId("s".into()));
        assert!(logs.0.is_empty());
    }

    #[test]
    fn a_restarted_servers_cursors_lie_ahead() {
        let mut logs = Logs::default();
        let old = Utc::now().timestamp_micros() - 1;
        logs.push(target(0), Event { id: RequestId("a".into()), size_bytes: None });
        assert_eq!(logs.after(&target(0), old).events.len(), 1);
    }
}
