//! Checkpoints that were deleted a short while ago, for clients who ask again because they did not hear the answer.

use chrono::{DateTime, Utc};

use super::Store;
use super::columns::micros;
use crate::error::Result;
use crate::ids::{CheckpointPath, OwnerId};

impl Store {
    /// Remembers that an owner deleted this checkpoint now.
    pub async fn note_deleted(&self, path: &CheckpointPath, owner: &OwnerId, at: DateTime<Utc>) -> Result<()> {
        sqlx::query(
            "INSERT INTO deleted_checkpoints (path, owner, deleted_at) VALUES ($1, $2, $3) \
             ON CONFLICT (path) DO UPDATE SET owner = excluded.owner, deleted_at = excluded.deleted_at",
        )
        .bind(path.to_string())
        .bind(&owner.0)
        .bind(micros(at))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Whether this owner deleted it between these times.
    pub async fn was_deleted(
        &self,
        path: &CheckpointPath,
        owner: &OwnerId,
        (from, to): (DateTime<Utc>, DateTime<Utc>),
    ) -> Result<bool> {
        let row = sqlx::query(
            "SELECT path FROM deleted_checkpoints WHERE path = $1 AND owner = $2 AND deleted_at >= $3 AND deleted_at < $4",
        )
        .bind(path.to_string())
        .bind(&owner.0)
        .bind(micros(from))
        .bind(micros(to))
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.is_some())
    }

    /// Forgets what was deleted before this time.
    pub async fn purge_deleted(&self, before: DateTime<Utc>) -> Result<u64> {
        let query = sqlx::query("DELETE FROM deleted_checkpoints WHERE deleted_at < $1").bind(micros(before));
        Ok(query.execute(&self.pool).await?.rows_affected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{at, empty_store};

    #[tokio::test]
    async fn a_deletion_is_its_owners_and_is_forgotten_in_time() {
        let store = empty_store().await;
        let path: CheckpointPath = "tinker://s:train:0/weights/a".parse().unwrap();
        let (me, other) = (OwnerId("me".into()), OwnerId("other".into()));
        store.note_deleted(&path, &me, at(5)).await.unwrap();
        store.note_deleted(&path, &me, at(6)).await.unwrap();
        let told = async |owner, from, to| store.was_deleted(&path, owner, (at(from), at(to))).await.unwrap();
        assert_eq!((told(&me, 6, 7).await, told(&me, 7, 9).await, told(&me, 0, 6).await), (true, false, false));
        assert!(!told(&other, 0, 9).await);
        assert_eq!((store.purge_deleted(at(6)).await.unwrap(), store.purge_deleted(at(7)).await.unwrap()), (0, 1));
    }
}
