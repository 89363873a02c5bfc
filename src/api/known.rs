//! Rows kept in memory: the hot path asks the database for a session, run or sampler once.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::Utc;

use crate::error::{Category, Result};
use crate::ids::{ModelId, SamplerId, SessionId};
use crate::store::Store;
use crate::store::runs::RunRow;
use crate::store::samplers::SamplerRow;
use crate::store::sessions::{Finish, SessionRow};

/// `last_request_time` of a run is written at most this often.
const TOUCH_INTERVAL: Duration = Duration::from_secs(5);

/// Rows do not change while they are here, but for a session's end and its project, which [`Known::finish`] and
/// [`Known::assign`] note.
#[derive(Default)]
pub struct Known {
    sessions: Memory<SessionId, SessionRow>,
    runs: Memory<ModelId, RunRow>,
    samplers: Memory<SamplerId, SamplerRow>,
    trained: Memory<ModelId, ()>,
    touched: Mutex<HashMap<ModelId, Instant>>,
    /// The last request on each session.
    seen: Mutex<HashMap<SessionId, Instant>>,
}

impl Known {
    pub async fn session(&self, store: &Store, id: &SessionId) -> Result<Option<Arc<SessionRow>>> {
        match self.sessions.get(id) {
            Some(row) => Ok(Some(row)),
            None => Ok(store.session(id).await?.map(|row| self.sessions.insert(id.clone(), row))),
        }
    }

    /// Note a request on the session.
    pub fn saw(&self, id: &SessionId) {
        let mut seen = self.seen.lock().expect("no code panics while it holds this map");
        if seen.len() >= MAX_ROWS {
            seen.clear();
        }
        match seen.get_mut(id) {
            Some(at) => *at = Instant::now(),
            None => {
                seen.insert(id.clone(), Instant::now());
            }
        }
    }

    /// Time since the last request on the session; `None` when there was none that is remembered.
    pub fn silence(&self, id: &SessionId) -> Option<Duration> {
        self.seen.lock().expect("no code panics while it holds this map").get(id).map(Instant::elapsed)
    }

    pub fn forget_silent(&self, timeout: Duration) {
        self.seen.lock().expect("no code panics while it holds this map").retain(|_, at| at.elapsed() < timeout);
        self.touched.lock().expect("no code panics while it holds this map").retain(|_, at| at.elapsed() < timeout);
    }

    pub async fn run(&self, store: &Store, id: &ModelId) -> Result<Option<Arc<RunRow>>> {
        match self.runs.get(id) {
            Some(row) => Ok(Some(row)),
            None => Ok(store.run(id).await?.map(|row| self.runs.insert(id.clone(), row))),
        }
    }

    /// Whether the run is known to be one that is trained, and not one that only holds weights.
    pub fn is_trained(&self, id: &ModelId) -> bool {
        self.trained.get(id).is_some()
    }

    pub fn trains(&self, id: &ModelId) {
        self.trained.insert(id.clone(), ());
    }

    pub async fn sampler(&self, store: &Store, id: &SamplerId) -> Result<Option<Arc<SamplerRow>>> {
        match self.samplers.get(id) {
            Some(row) => Ok(Some(row)),
            None => Ok(store.sampler(id).await?.map(|row| self.samplers.insert(id.clone(), row))),
        }
    }

    /// A run whose creation was submitted: requests on it are in order behind the creation.
    pub fn announce_run(&self, row: RunRow) {
        self.trains(&row.id);
        self.runs.insert(row.id.clone(), row);
    }

    /// A session's runs that are in memory, those still being created among them.
    pub fn runs_of(&self, session: &SessionId) -> Vec<ModelId> {
        self.runs.keys_where(|run| run.session == *session)
    }

    pub fn finish(&self, row: &SessionRow, finish: Finish) {
        self.sessions.insert(row.id.clone(), SessionRow { finished: Some(finish), ..row.clone() });
    }

    pub fn assign(&self, row: &SessionRow, project_id: &str) {
        self.sessions.insert(row.id.clone(), SessionRow { project_id: Some(project_id.into()), ..row.clone() });
    }

    /// Write the run's `last_request_time` in the background, now and then.
    pub fn touch(&self, store: &Store, id: &ModelId) {
        let mut touched = self.touched.lock().expect("no code panics while it holds this map");
        if touched.get(id).is_some_and(|at| at.elapsed() < TOUCH_INTERVAL) {
            return;
        }
        touched.insert(id.clone(), Instant::now());
        let (store, id) = (store.clone(), id.clone());
        tokio::spawn(async move {
            // A run that is still being created has no row yet.
            if let Err(e) = store.touch_run(&id, Utc::now()).await
                && e.category != Category::NotFound
            {
                tracing::warn!(run = %id, error = %e, "last_request_time not written");
            }
        });
    }
}

/// Enough for every live session; beyond it the map starts afresh and refills from the database.
const MAX_ROWS: usize = 100_000;

struct Memory<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, V> Memory<K, V> {
    fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().expect("no code panics while it holds this map").get(key).cloned()
    }

    fn keys_where(&self, wanted: impl Fn(&V) -> bool) -> Vec<K> {
        let map = self.0.lock().expect("no code panics while it holds this map");
        map.iter().filter(|(_, row)| wanted(row)).map(|(key, _)| key.clone()).collect()
    }

    fn insert(&self, key: K, row: V) -> Arc<V> {
        let row = Arc::new(row);
        let mut map = self.0.lock().expect("no code panics while it holds this map");
        if map.len() >= MAX_ROWS {
            map.clear();
        }
        map.insert(key, row.clone());
        row
    }
}
