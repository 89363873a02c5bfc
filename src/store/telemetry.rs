//! What clients report of themselves, kept as they sent it (protocol chapter 16).

use chrono::{DateTime, Utc};

use super::Store;
use super::columns::{Columns, int, micros};
use crate::error::Result;
use crate::ids::{OwnerId, SessionId};

impl Store {
    /// `session` may be `sessionless-<uuid>`; `body` is JSON and not looked into.
    pub async fn insert_telemetry(&self, owner: &OwnerId, session: &str, body: &str) -> Result<()> {
        sqlx::query("INSERT INTO telemetry (owner, session_id, received_at, body) VALUES ($1, $2, $3, $4)")
            .bind(&owner.0)
            .bind(session)
            .bind(micros(Utc::now()))
            .bind(body)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// What was reported of a session, the newest `limit` reports, oldest first, each with its time.
    pub async fn session_telemetry(&self, session: &SessionId, limit: u64) -> Result<Vec<(DateTime<Utc>, String)>> {
        let rows = sqlx::query(
            "SELECT received_at, body FROM telemetry WHERE session_id = $1 ORDER BY received_at DESC LIMIT $2",
        )
        .bind(&session.0)
        .bind(int(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().rev().map(|row| Ok((row.time("received_at")?, row.text("body")?))).collect()
    }

    /// The sweep: removes what was received before `time`; returns how many rows.
    pub async fn purge_telemetry(&self, time: DateTime<Utc>) -> Result<u64> {
        let query = sqlx::query("DELETE FROM telemetry WHERE received_at < $1").bind(micros(time));
        Ok(query.execute(&self.pool).await?.rows_affected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::empty_store;
    use chrono::TimeDelta;

    #[tokio::test]
    async fn only_old_reports_are_purged() {
        let store = empty_store().await;
        let owner = OwnerId("o".into());
        for session in ["s", "sessionless-1"] {
            store.insert_telemetry(&owner, session, "{\"events\":[]}").await.unwrap();
        }
        let reports = store.session_telemetry(&SessionId("s".into()), 9).await.unwrap();
        assert_eq!(reports.iter().map(|(_, body)| body.as_str()).collect::<Vec<_>>(), ["{\"events\":[]}"]);
        assert_eq!(store.purge_telemetry(Utc::now() - TimeDelta::hours(1)).await.unwrap(), 0);
        assert_eq!(store.purge_telemetry(Utc::now() + TimeDelta::hours(1)).await.unwrap(), 2);
    }
}
