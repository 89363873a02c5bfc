//! What each account took: counted in memory as outcomes pass, added to the table in batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use super::speed::{Speed, Tokens};
use crate::error::{Error, Result};
use crate::ids::{ModelId, OwnerId, SamplerId, SessionId};
use crate::store::Store;
use crate::store::samplers::SamplerSource;
use crate::store::storage::Stored;
use crate::store::usage::{Counters, UsageKey};

/// Keys counted in memory between two flushes. Beyond it, only account and base model are told apart.
const MAX_KEYS: usize = 1 << 17;

/// Storage is counted in steps of at least this: each takes a look at every checkpoint.
const STORAGE_STEP: TimeDelta = TimeDelta::seconds(1);

/// Samplers whose run is remembered.
const MAX_SAMPLERS: usize = 1 << 14;

/// Who took something, and for what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spender {
    pub owner: OwnerId,
    pub session: Option<SessionId>,
    pub work: Work,
    pub base_model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    Run(ModelId),
    /// Counted under the run whose weights it samples, if it has one.
    Sampler(SamplerId),
    /// Neither a run's nor a sampler's.
    Other,
}

/// By the beginning of the hour.
type Counted = HashMap<(DateTime<Utc>, Spender), Counters>;

/// Clones share the counts.
#[derive(Clone)]
pub struct Usage(Arc<Shared>);

struct Shared {
    pending: Mutex<Counted>,
    speed: Mutex<Speed>,
    start: Instant,
    /// Held while rows are written, so that who flushes finds everything written afterwards.
    writing: tokio::sync::Mutex<Writing>,
}

struct Writing {
    /// Storage is counted up to here.
    stored_until: DateTime<Utc>,
    /// Which run a sampler samples from.
    runs: HashMap<SamplerId, Option<ModelId>>,
}

impl Usage {
    /// Storage is counted from `now` on.
    pub fn new(now: DateTime<Utc>) -> Self {
        Self(Arc::new(Shared {
            pending: Mutex::default(),
            speed: Mutex::default(),
            start: Instant::now(),
            writing: tokio::sync::Mutex::new(Writing { stored_until: now, runs: HashMap::new() }),
        }))
    }

    /// Counts in memory; never waits for the database.
    pub fn add(&self, spender: Spender, counters: &Counters) {
        let second = self.0.start.elapsed().as_secs();
        self.0.speed.lock().expect("no code panics while it holds the speed").add(counters, second);
        self.add_at(spender, counters, Utc::now());
    }

    fn add_at(&self, spender: Spender, counters: &Counters, at: DateTime<Utc>) {
        let mut pending = self.pending();
        let key = (hour_of(at), spender);
        let key = match pending.contains_key(&key) || pending.len() < MAX_KEYS {
            true => key,
            false => (key.0, Spender { session: None, work: Work::Other, ..key.1 }),
        };
        *pending.entry(key).or_default() += *counters;
    }

    /// Tokens of the whole server over the last minute.
    pub fn last_minute(&self) -> Tokens {
        let second = self.0.start.elapsed().as_secs();
        self.0.speed.lock().expect("no code panics while it holds the speed").last_minute(second)
    }

    /// Adds all that was counted so far to the table, with the storage up to `now`. What could not be written stays.
    /// It goes on when whoever asked for it does not wait for the end.
    pub async fn flush(&self, store: &Store, now: DateTime<Utc>) -> Result<()> {
        self.write(store, Some(now)).await
    }

    /// As [`Self::flush`], without the storage, which takes a look at every checkpoint.
    pub async fn flush_work(&self, store: &Store) -> Result<()> {
        self.write(store, None).await
    }

    async fn write(&self, store: &Store, storage: Option<DateTime<Utc>>) -> Result<()> {
        let (usage, store) = (self.clone(), store.clone());
        let written = tokio::spawn(async move {
            let mut writing = usage.0.writing.lock().await;
            if let Some(now) = storage.filter(|now| *now - writing.stored_until >= STORAGE_STEP) {
                for stored in store.stored().await? {
                    usage.add_storage(&stored, writing.stored_until, now);
                }
                writing.stored_until = now;
            }
            let counted = std::mem::take(&mut *usage.pending());
            let written = writing.write(&store, &counted).await;
            if written.is_err() {
                let mut pending = usage.pending();
                counted.into_iter().for_each(|(key, counters)| *pending.entry(key).or_default() += counters);
            }
            written
        });
        written.await.map_err(|e| Error::server(format!("usage was not written: {e}")))?
    }

    /// Counts the storage of a checkpoint that is about to go, up to `now`.
    pub async fn let_go(&self, stored: &Stored, now: DateTime<Utc>) {
        let writing = self.0.writing.lock().await;
        self.add_storage(stored, writing.stored_until, now);
    }

    fn add_storage(&self, stored: &Stored, since: DateTime<Utc>, now: DateTime<Utc>) {
        let until = stored.expires_at.map_or(now, |expiry| expiry.min(now));
        for (hour, part) in hours(stored.created_at.max(since), until) {
            let micros = part.num_microseconds().unwrap_or_default().max(0).cast_unsigned();
            let byte_seconds = u128::from(stored.size_bytes) * u128::from(micros) / 1_000_000;
            let counters = Counters { storage_byte_seconds: byte_seconds as u64, ..Counters::default() };
            let spender = Spender {
                owner: stored.owner.clone(),
                session: None,
                work: Work::Run(stored.run.clone()),
                base_model: stored.base_model.clone(),
            };
            self.add_at(spender, &counters, hour);
        }
    }

    fn pending(&self) -> MutexGuard<'_, Counted> {
        self.0.pending.lock().expect("no code panics while it holds the counts")
    }
}

impl Writing {
    async fn write(&mut self, store: &Store, counted: &Counted) -> Result<()> {
        let mut rows = HashMap::with_capacity(counted.len());
        for ((hour, spender), counters) in counted {
            let key = key(*hour, spender, self.run_behind(store, &spender.work).await?);
            *rows.entry(key).or_insert_with(Counters::default) += *counters;
        }
        if rows.is_empty() { Ok(()) } else { store.add_usage(&rows).await }
    }

    /// The run behind this work.
    async fn run_behind(&mut self, store: &Store, work: &Work) -> Result<Option<ModelId>> {
        let sampler = match work {
            Work::Run(run) => return Ok(Some(run.clone())),
            Work::Other => return Ok(None),
            Work::Sampler(sampler) => sampler,
        };
        if let Some(run) = self.runs.get(sampler) {
            return Ok(run.clone());
        }
        let run = store.sampler(sampler).await?.and_then(|row| match row.source {
            SamplerSource::Base => None,
            SamplerSource::Checkpoint { path, .. } => Some(path.run),
            SamplerSource::Snapshot(run) => Some(run),
        });
        if self.runs.len() >= MAX_SAMPLERS {
            self.runs.clear();
        }
        self.runs.insert(sampler.clone(), run.clone());
        Ok(run)
    }
}

fn key(hour: DateTime<Utc>, spender: &Spender, run: Option<ModelId>) -> UsageKey {
    let sampler = match &spender.work {
        Work::Sampler(sampler) if run.is_none() => Some(sampler.clone()),
        _ => None,
    };
    UsageKey {
        owner: spender.owner.clone(),
        hour,
        session: spender.session.clone(),
        run,
        sampler,
        base_model: spender.base_model.clone(),
    }
}

/// The beginning of the hour in UTC.
pub fn hour_of(at: DateTime<Utc>) -> DateTime<Utc> {
    at.duration_trunc(TimeDelta::hours(1)).unwrap_or(at)
}

/// The time between two points, by the hours it lies in; nothing when the second is not later.
fn hours(from: DateTime<Utc>, until: DateTime<Utc>) -> Vec<(DateTime<Utc>, TimeDelta)> {
    let mut parts = Vec::new();
    let mut at = from;
    while at < until {
        let next = (hour_of(at) + TimeDelta::hours(1)).min(until);
        parts.push((hour_of(at), next - at));
        at = next;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::usage::UsageFilter;

    fn at(text: &str) -> DateTime<Utc> {
        format!("2026-07-13T{text}Z").parse().unwrap()
    }

    fn spender(work: Work) -> Spender {
        let session = Some(SessionId("s".into()));
        Spender { owner: OwnerId("o".into()), session, work, base_model: "m".into() }
    }

    #[test]
    fn time_is_cut_at_whole_hours() {
        let parts = hours(at("10:59:00"), at("12:00:30"));
        let minutes = |n| TimeDelta::minutes(n);
        let expected =
            [(at("10:00:00"), minutes(1)), (at("11:00:00"), minutes(60)), (at("12:00:00"), TimeDelta::seconds(30))];
        assert_eq!(parts, expected);
        assert!(hours(at("11:00:00"), at("10:00:00")).is_empty());
    }

    #[tokio::test]
    async fn counts_reach_the_table_once_and_add_up() {
        let store = crate::store::testing::empty_store().await;
        let usage = Usage::new(at("10:00:00"));
        let run = Work::Run(SessionId("s".into()).model(0));
        let three = Counters { train_tokens: 3, device_micros: 10, ..Counters::default() };
        usage.add_at(spender(run.clone()), &three, at("10:10:00"));
        usage.add_at(spender(run.clone()), &three, at("10:20:00"));
        usage.flush(&store, at("10:30:00")).await.unwrap();
        usage.flush(&store, at("10:30:01")).await.unwrap();
        usage.add_at(spender(run), &three, at("10:40:00"));
        usage.add_at(spender(Work::Other), &three, at("11:00:00"));
        usage.flush(&store, at("11:00:01")).await.unwrap();
        let filter = UsageFilter::all(&OwnerId("o".into()), at("10:00:00"), at("12:00:00"));
        let rows = store.usage_by_hour(&filter).await.unwrap();
        let tokens: Vec<_> = rows.iter().map(|(key, c)| (key.hour, c.train_tokens, c.device_micros)).collect();
        assert_eq!(tokens, [(at("10:00:00"), 9, 30), (at("11:00:00"), 3, 10)]);
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_kept() {
        let store = crate::store::testing::empty_store().await;
        let usage = Usage::new(at("10:00:00"));
        let one = Counters { checkpoints: 1, ..Counters::default() };
        usage.add_at(spender(Work::Other), &one, at("10:10:00"));
        let closed = crate::store::testing::empty_store().await;
        closed.close().await;
        assert!(usage.flush(&closed, at("10:11:00")).await.is_err());
        usage.flush(&store, at("10:12:00")).await.unwrap();
        let filter = UsageFilter::all(&OwnerId("o".into()), at("10:00:00"), at("11:00:00"));
        assert_eq!(store.usage_by_hour(&filter).await.unwrap()[0].1.checkpoints, 1);
    }

    #[tokio::test]
    async fn storage_counts_from_creation_to_deletion() {
        let store = crate::store::testing::empty_store().await;
        let usage = Usage::new(at("10:00:00"));
        let stored = Stored {
            owner: OwnerId("o".into()),
            run: ModelId("s:train:0".into()),
            base_model: "m".into(),
            size_bytes: 1000,
            created_at: at("10:30:00"),
            expires_at: None,
        };
        usage.let_go(&stored, at("11:00:10")).await;
        usage.let_go(&Stored { expires_at: Some(at("10:30:05")), ..stored }, at("11:00:00")).await;
        usage.flush(&store, at("11:00:10")).await.unwrap();
        let filter = UsageFilter::all(&OwnerId("o".into()), at("10:00:00"), at("12:00:00"));
        let rows = store.usage_by_hour(&filter).await.unwrap();
        let seconds: Vec<_> = rows.iter().map(|(_, c)| c.storage_byte_seconds).collect();
        assert_eq!(seconds, [1_805_000, 10_000]);
    }
}
