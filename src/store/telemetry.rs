//! What clients report of themselves, kept as they sent it (protocol chapter 16).

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt;

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

    /// What this owner reported of a session, the newest reports that together take at most `bytes`, oldest first,
    /// each with its time.
    pub async fn session_telemetry(
        &self,
        owner: &OwnerId,
        session: &SessionId,
        bytes: usize,
    ) -> Result<Vec<(DateTime<Utc>, String)>> {
        let query = sqlx::query(
            "SELECT received_at, body FROM telemetry WHERE owner = $1 AND session_id = $2 ORDER BY received_at DESC",
        );
        let mut rows = query.bind(&owner.0).bind(&session.0).fetch(&self.pool);
        let (mut reports, mut taken) = (Vec::new(), 0);
        while let Some(row) = rows.try_next().await? {
            let body = row.text("body")?;
            taken += body.len();
            if taken > bytes {
                break;
            }
            reports.push((row.time("received_at")?, body));
        }
        reports.reverse();
        Ok(reports)
    }

    async fn trim_telemetry(&self, bytes: u64) -> Result<()> {
        let full = sqlx::query(
            "SELECT owner, MAX(received_at) AS received_at FROM (SELECT owner, received_at, SUM(LENGTH(body)) OVER \
             (PARTITION BY owner ORDER BY received_at DESC ROWS UNBOUNDED PRECEDING) AS taken FROM telemetry) AS t \
             WHERE taken > $1 GROUP BY owner",
        );
        for row in full.bind(int(bytes)).fetch_all(&self.pool).await? {
            sqlx::query("DELETE FROM telemetry WHERE owner = $1 AND received_at <= $2")
                .bind(row.text("owner")?)
                .bind(micros(row.time("received_at")?))
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }

    /// The sweep: removes what was received before `time`, and of each owner's reports all but the newest that together
    /// take at most `bytes`.
    pub async fn purge_telemetry(&self, time: DateTime<Utc>, bytes: u64) -> Result<()> {
        sqlx::query("DELETE FROM telemetry WHERE received_at < $1").bind(micros(time)).execute(&self.pool).await?;
        self.trim_telemetry(bytes).await
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
        let reports = store.session_telemetry(&owner, &SessionId("s".into()), 99).await.unwrap();
        assert_eq!(reports.iter().map(|(_, body)| body.as_str()).collect::<Vec<_>>(), ["{\"events\":[]}"]);
        let left = async || {
            let reports = store.session_telemetry(&owner, &SessionId("s".into()), 99).await.unwrap();
            reports.len()
        };
        store.purge_telemetry(Utc::now() - TimeDelta::hours(1), 99).await.unwrap();
        assert_eq!(left().await, 1);
        store.purge_telemetry(Utc::now() + TimeDelta::hours(1), 99).await.unwrap();
        assert_eq!(left().await, 0);
    }

    #[tokio::test]
    async fn reports_are_their_owners_and_bounded_in_bytes() {
        let store = empty_store().await;
        let (owner, other, session) = (OwnerId("o".into()), OwnerId("p".into()), SessionId("s".into()));
        for (who, body) in [(&owner, "1111"), (&other, "2222"), (&owner, "3333"), (&owner, "4444")] {
            store.insert_telemetry(who, "s", body).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        let bodies = async |who: &OwnerId, bytes| {
            let reports = store.session_telemetry(who, &session, bytes).await.unwrap();
            reports.into_iter().map(|(_, body)| body).collect::<Vec<_>>()
        };
        assert_eq!(bodies(&owner, 99).await, ["1111", "3333", "4444"]);
        assert_eq!(bodies(&owner, 9).await, ["3333", "4444"]);
        assert_eq!(bodies(&other, 99).await, ["2222"]);
        store.purge_telemetry(Utc::now() - TimeDelta::hours(1), 8).await.unwrap();
        assert_eq!(
            (bodies(&owner, 99).await, bodies(&other, 99).await),
            (vec!["3333".into(), "4444".into()], vec!["2222".into()])
        );
    }
}
