//! Runs that hold copied or uploaded weights, and which copies were made (protocol §7.16).

use chrono::{DateTime, Utc};

use super::Store;
use super::columns::{Columns, corrupt, micros};
use crate::error::Result;
use crate::ids::{CheckpointPath, ModelId, OwnerId};

/// What a request to copy came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRow {
    /// The request as it was sent, to tell a repeat from another one under the same key.
    pub request: String,
    pub path: CheckpointPath,
}

impl Store {
    /// The run cannot be trained; `origin` says where its weights came from.
    pub async fn hold_run(&self, run: &ModelId, origin: &str) -> Result<()> {
        let query = sqlx::query("INSERT INTO held_runs (run_id, origin) VALUES ($1, $2)");
        query.bind(&run.0).bind(origin).execute(&self.pool).await?;
        Ok(())
    }

    /// Where the weights of a run that cannot be trained came from; `None` for all other runs.
    pub async fn held_run(&self, run: &ModelId) -> Result<Option<String>> {
        let query = sqlx::query("SELECT origin FROM held_runs WHERE run_id = $1").bind(&run.0);
        query.fetch_optional(&self.pool).await?.map(|row| row.text("origin")).transpose()
    }

    pub async fn insert_copy(&self, owner: &OwnerId, key: &str, row: &CopyRow) -> Result<()> {
        sqlx::query(
            "INSERT INTO copies (owner, idempotency_key, request, path, created_at) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(&owner.0)
        .bind(key)
        .bind(&row.request)
        .bind(row.path.to_string())
        .bind(micros(Utc::now()))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// The copy that this owner asked for under this key.
    pub async fn copy(&self, owner: &OwnerId, key: &str) -> Result<Option<CopyRow>> {
        let query = sqlx::query("SELECT request, path FROM copies WHERE owner = $1 AND idempotency_key = $2");
        let Some(row) = query.bind(&owner.0).bind(key).fetch_optional(&self.pool).await? else { return Ok(None) };
        let path = row.text("path")?.parse().map_err(|_| corrupt("path"))?;
        Ok(Some(CopyRow { request: row.text("request")?, path }))
    }

    /// The sweep: forgets the keys of copies made before `time`; returns how many.
    pub async fn purge_copies(&self, time: DateTime<Utc>) -> Result<u64> {
        let query = sqlx::query("DELETE FROM copies WHERE created_at < $1").bind(micros(time));
        Ok(query.execute(&self.pool).await?.rows_affected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    #[tokio::test]
    async fn held_runs_say_where_their_weights_came_from() {
        let store = crate::store::testing::empty_store().await;
        let run = ModelId("s:train:0".into());
        assert_eq!(store.held_run(&run).await.unwrap(), None);
        store.hold_run(&run, "an upload").await.unwrap();
        assert_eq!(store.held_run(&run).await.unwrap().as_deref(), Some("an upload"));
    }

    #[tokio::test]
    async fn a_copys_key_is_its_owners_and_is_forgotten_in_time() {
        let store = crate::store::testing::empty_store().await;
        let (me, other) = (OwnerId("me".into()), OwnerId("other".into()));
        let row = CopyRow { request: "{}".into(), path: "tinker://s:train:0/weights/a".parse().unwrap() };
        store.insert_copy(&me, "k", &row).await.unwrap();
        assert_eq!(store.copy(&me, "k").await.unwrap(), Some(row));
        assert_eq!(store.copy(&other, "k").await.unwrap(), None);
        assert_eq!(store.purge_copies(Utc::now() - TimeDelta::hours(1)).await.unwrap(), 0);
        assert_eq!(store.purge_copies(Utc::now() + TimeDelta::hours(1)).await.unwrap(), 1);
        assert_eq!(store.copy(&me, "k").await.unwrap(), None);
    }
}
