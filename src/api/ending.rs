//! How a session ends: by its client, or because it fell silent. What it holds in the engine is freed.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::json;

use crate::error::Result;
use crate::ids::SessionId;
use crate::store::sessions::{Finish, SessionRow};

use super::state::App;

/// Sessions looked at in one sweep; the rest comes next time.
const BATCH: u64 = 1000;

impl App {
    /// The first reason stays. The session's runs leave the engine, its samples are dropped.
    pub async fn end_session(&self, session: &SessionRow, finish: Finish) -> Result<()> {
        self.store().finish_session(&session.id, &finish).await?;
        tracing::info!(session = %session.id, reason = finish.reason, "session ended");
        let what = json!({ "session_id": session.id.0, "reason": finish.reason });
        self.store().note(Some(&session.owner), "session_finished", what);
        self.known().finish(session, finish);
        let listed = self.store().session_runs(&session.id).await?;
        let runs: HashSet<_> = self.known().runs_of(&session.id).into_iter().chain(listed).collect();
        for run in runs {
            self.futures().unload(session.owner.clone(), run);
        }
        self.engine().end_session(session.id.clone());
        self.futures().forget_session(&session.id);
        // Files that only samplers of the ended one kept.
        for dir in self.store().unlisted_dirs_of(&session.id).await? {
            self.futures().discard(dir);
        }
        self.ready_losses().forget(&session.id);
        self.store().delete_custom_losses(&session.id).await?;
        Ok(())
    }

    /// Whether the session ended while a request on it was under way, so that what the request began must go again.
    pub async fn has_ended(&self, id: &SessionId) -> Result<bool> {
        let row = self.known().session(self.store(), id).await?;
        Ok(row.is_none_or(|session| session.finished.is_some()))
    }

    /// Frees what sessions hold that fell silent since the last call, `since` ago. Their runs wake when they are heard again.
    pub async fn quiet_silent_sessions(&self, since: Duration) -> Result<()> {
        let silence = self.limits().session_silence;
        let to = Utc::now() - TimeDelta::from_std(silence).unwrap_or(TimeDelta::MAX);
        let from = to - TimeDelta::from_std(since).unwrap_or(TimeDelta::MAX);
        for session in self.store().silent_between((from, to), BATCH).await? {
            if self.known().silence(&session.id).is_some_and(|s| s < silence) {
                // Its requests are noted in memory only; it comes again when they stop.
                self.store().heartbeat_session(&session.id, Utc::now()).await?;
                continue;
            }
            let runs = self.store().session_runs(&session.id).await?;
            tracing::info!(session = %session.id, runs = runs.len(), "session fell silent");
            self.engine().fell_silent(session.id, runs);
        }
        Ok(())
    }

    /// Ends sessions that sent neither heartbeat nor request for longer than the timeout.
    pub async fn end_silent_sessions(&self) -> Result<()> {
        let timeout = self.limits().session_timeout;
        let now = Utc::now();
        let since = now - TimeDelta::from_std(timeout).unwrap_or(TimeDelta::MAX);
        let silent = self.store().silent_sessions(since, BATCH).await?;
        for session in silent {
            match self.known().silence(&session.id) {
                // Its requests are noted in memory only.
                Some(silence) if silence < timeout => {
                    let seen = now - TimeDelta::from_std(silence).unwrap_or_default();
                    self.store().heartbeat_session(&session.id, seen).await?;
                }
                _ => {
                    let detail = format!("neither heartbeat nor request for {} s", timeout.as_secs());
                    let finish = Finish { at: now, reason: "abandoned".into(), detail: Some(detail) };
                    self.end_session(&session, finish).await?;
                }
            }
        }
        self.known().forget_silent(timeout);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::engine::handle::Message;

    #[tokio::test]
    async fn the_end_of_a_session_reaches_the_engine() {
        let (app, engine) = testing::app().await;
        let session = testing::session(&app, Utc::now()).await;
        let finish = Finish { at: Utc::now(), reason: "success".into(), detail: None };
        app.end_session(&session, finish).await.unwrap();
        assert!(matches!(engine.recv().unwrap(), Message::EndSession(id) if id == session.id));
        assert!(app.has_ended(&session.id).await.unwrap());
        assert!(app.open_session(&owner(), &session.id).await.is_err());
    }

    #[tokio::test]
    async fn only_silent_sessions_are_abandoned() {
        let (app, engine) = testing::app().await;
        let long_ago = Utc::now() - TimeDelta::days(2);
        let (silent, asking) = (testing::session(&app, long_ago).await, testing::session(&app, long_ago).await);
        let live = testing::session(&app, Utc::now()).await;
        app.session(&owner(), &asking.id).await.unwrap();
        app.end_silent_sessions().await.unwrap();
        let finished = async |id| app.store().session(id).await.unwrap().unwrap().finished.map(|f| f.reason);
        assert_eq!(finished(&silent.id).await, Some("abandoned".into()));
        assert_eq!((finished(&asking.id).await, finished(&live.id).await), (None, None));
        assert!(matches!(engine.recv().unwrap(), Message::EndSession(id) if id == silent.id));
        assert!(engine.try_recv().is_err());
    }
}
