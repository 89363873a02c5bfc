//! Which copies of checkpoints were made, by the keys of their requests (protocol §7.16).

use chrono::{DateTime, Utc};

use super::Store;
use super::columns::{Columns, corrupt, micros};
use crate::error::Result;
use crate::ids::{CheckpointPath, OwnerId};

/// What a request to copy came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRow {
    /// The request as it was sent, to tell a repeat from another one under the same key.
    pub request: String,
    pub path: CheckpointPath,
}

impl Store {
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
