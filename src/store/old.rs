//! Rows of sessions that ended long ago and of which nothing is left go, so that tables do not grow for ever.

use chrono::{DateTime, Utc};

use super::Store;
use super::columns::{int, micros};
use crate::error::Result;

impl Store {
    /// Removes up to `limit` samplers, runs without a checkpoint, and sessions without a run, each of sessions that ended
    /// before `time`. → how many rows went.
    pub async fn purge_ended_sessions(&self, time: DateTime<Utc>, limit: u64) -> Result<u64> {
        let ended = "(SELECT id FROM sessions WHERE finished_at IS NOT NULL AND finished_at < $1)";
        let no_checkpoint = "NOT EXISTS (SELECT 1 FROM checkpoints WHERE checkpoints.run_id = training_runs.id)";
        let statements = [
            format!("DELETE FROM samplers WHERE id IN (SELECT id FROM samplers WHERE session_id IN {ended} LIMIT $2)"),
            format!(
                "DELETE FROM held_runs WHERE run_id IN (SELECT id FROM training_runs WHERE session_id IN {ended} AND \
                 {no_checkpoint} LIMIT $2)"
            ),
            format!(
                "DELETE FROM training_runs WHERE id IN (SELECT id FROM training_runs WHERE session_id IN {ended} AND \
                 {no_checkpoint} AND id NOT IN (SELECT run_id FROM held_runs) LIMIT $2)"
            ),
            "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE finished_at IS NOT NULL AND finished_at < $1 \
             AND NOT EXISTS (SELECT 1 FROM training_runs WHERE training_runs.session_id = sessions.id) \
             AND NOT EXISTS (SELECT 1 FROM samplers WHERE samplers.session_id = sessions.id) LIMIT $2)"
                .into(),
        ];
        let mut gone = 0;
        for sql in &statements {
            let done = sqlx::query(sql).bind(micros(time)).bind(int(limit)).execute(&self.pool).await?;
            gone += done.rows_affected();
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod tests {

    use crate::ids::SessionId;
    use crate::store::samplers::SamplerSource;
    use crate::store::sessions::Finish;
    use crate::store::testing::{at, checkpoint, empty_store, run, sampler, session};

    #[tokio::test]
    async fn only_long_ended_sessions_without_checkpoints_go() {
        let store = empty_store().await;
        for (id, finished) in [("old", Some(1)), ("saved", Some(1)), ("young", Some(9)), ("open", None)] {
            store.insert_session(&session(id, "o")).await.unwrap();
            store.insert_run(&run(&format!("{id}:train:0"), "o")).await.unwrap();
            store.insert_sampler(&sampler(id, 0, "o", SamplerSource::Base)).await.unwrap();
            if let Some(second) = finished {
                let finish = Finish { at: at(second), reason: "success".into(), detail: None };
                store.finish_session(&SessionId(id.into()), &finish).await.unwrap();
            }
        }
        store.put_checkpoint(&checkpoint("tinker://saved:train:0/weights/a", "o")).await.unwrap();
        // Two samplers, a run and a session.
        assert_eq!(store.purge_ended_sessions(at(5), 1000).await.unwrap(), 4);
        assert_eq!(store.purge_ended_sessions(at(5), 1000).await.unwrap(), 0);
        let left = async |id: &str| store.session(&SessionId(id.into())).await.unwrap().is_some();
        assert_eq!((left("old").await, left("saved").await, left("young").await), (false, true, true));
        assert!(store.run(&SessionId("saved".into()).model(0)).await.unwrap().is_some());
        assert!(store.sampler(&SessionId("open".into()).sampler(0)).await.unwrap().is_some());
    }
}
