//! The training runs that live in the engine, whose they are, and how many one account may have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::ids::{ModelId, OwnerId, SessionId};

/// What a run's work is counted under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRun {
    pub owner: OwnerId,
    pub session: SessionId,
    pub base_model: String,
}

/// Clones share one list.
#[derive(Clone, Default)]
pub struct Runs(Arc<Mutex<HashMap<ModelId, LiveRun>>>);

/// As many runs as the account may have, and the sessions they belong to, each once, in the order of their ids.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany {
    pub limit: u64,
    pub used: u64,
    pub sessions: Vec<SessionId>,
}

impl Runs {
    /// Notes a run whose creation is about to be asked for. One that is noted already is fine.
    pub fn begin(&self, id: &ModelId, run: LiveRun, limit: Option<u64>) -> Result<(), TooMany> {
        let mut runs = self.lock();
        if runs.contains_key(id) {
            return Ok(());
        }
        if let Some(limit) = limit {
            let used = runs.values().filter(|r| r.owner == run.owner).count() as u64;
            if used >= limit {
                let held = runs.values().filter(|r| r.owner == run.owner).map(|r| r.session.clone());
                let mut sessions: Vec<SessionId> = held.collect();
                sessions.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                sessions.dedup();
                return Err(TooMany { limit, used, sessions });
            }
        }
        runs.insert(id.clone(), run);
        Ok(())
    }

    /// The run was not created, or leaves the engine.
    pub fn end(&self, id: &ModelId) {
        self.lock().remove(id);
    }

    pub fn get(&self, id: &ModelId) -> Option<LiveRun> {
        self.lock().get(id).cloned()
    }

    pub fn of(&self, owner: &OwnerId) -> u64 {
        self.lock().values().filter(|r| r.owner == *owner).count() as u64
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModelId, LiveRun>> {
        self.0.lock().expect("no code panics while it holds the runs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_gets_its_number_of_runs_and_again_when_one_ends() {
        let runs = Runs::default();
        let session = SessionId("s".into());
        let run =
            |owner: &str| LiveRun { owner: OwnerId(owner.into()), session: session.clone(), base_model: "m".into() };
        let begin = |n, owner: &str| runs.begin(&session.model(n), run(owner), Some(2));
        assert_eq!((begin(0, "a"), begin(1, "a"), begin(2, "b")), (Ok(()), Ok(()), Ok(())));
        assert_eq!(begin(3, "a"), Err(TooMany { limit: 2, used: 2, sessions: vec![session.clone()] }));
        assert_eq!(begin(1, "a"), Ok(()), "a repeat");
        runs.end(&session.model(0));
        assert_eq!(begin(3, "a"), Ok(()));
        assert_eq!((runs.of(&OwnerId("a".into())), runs.get(&session.model(2))), (2, Some(run("b"))));
    }
}
