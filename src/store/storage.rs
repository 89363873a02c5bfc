//! What checkpoints take on disk. Expired ones no longer count.

use chrono::{DateTime, Utc};

use super::Store;
use super::checkpoints::CheckpointRow;
use super::columns::{Columns, micros};
use crate::error::Result;
use crate::ids::{CheckpointPath, ModelId, OwnerId};

/// A checkpoint's place on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub owner: OwnerId,
    pub run: ModelId,
    pub base_model: String,
    pub size_bytes: u64,
    pub created_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
}

/// An account's checkpoints of one project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectStorage {
    pub project_id: Option<String>,
    pub checkpoints: u64,
    pub size_bytes: u64,
}

impl From<&CheckpointRow> for Stored {
    fn from(row: &CheckpointRow) -> Self {
        Self {
            owner: row.owner.clone(),
            run: row.path.run.clone(),
            base_model: row.base_model.clone(),
            size_bytes: row.size_bytes,
            created_at: row.created_at,
            expires_at: row.expires_at,
        }
    }
}

impl Store {
    /// Every checkpoint that has a row, expired ones among them.
    pub async fn stored(&self) -> Result<Vec<Stored>> {
        let query =
            sqlx::query("SELECT owner, run_id, base_model, size_bytes, created_at, expires_at FROM checkpoints");
        let rows = query.fetch_all(&self.pool).await?;
        let read = |row: &sqlx::any::AnyRow| {
            Ok(Stored {
                owner: OwnerId(row.text("owner")?),
                run: ModelId(row.text("run_id")?),
                base_model: row.text("base_model")?,
                size_bytes: row.number("size_bytes")?,
                created_at: row.time("created_at")?,
                expires_at: row.optional_time("expires_at")?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Bytes of all of an account's checkpoints but the one at this path, which is about to be replaced.
    pub async fn stored_bytes(&self, owner: &OwnerId, but: Option<&CheckpointPath>) -> Result<u64> {
        let row = sqlx::query(
            "SELECT CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) AS total FROM checkpoints \
             WHERE owner = $1 AND (expires_at IS NULL OR expires_at > $2) \
             AND NOT (run_id = $3 AND kind = $4 AND name = $5)",
        )
        .bind(&owner.0)
        .bind(micros(Utc::now()))
        .bind(but.map_or("", |path| &path.run.0))
        .bind(but.map_or("", |path| path.kind.segment()))
        .bind(but.map_or("", |path| &path.name))
        .fetch_one(&self.pool)
        .await?;
        row.number("total")
    }

    /// By the project of each checkpoint's session; with `project_id` only that one.
    pub async fn storage_by_project(&self, owner: &OwnerId, project_id: Option<&str>) -> Result<Vec<ProjectStorage>> {
        let rows = sqlx::query(
            "SELECT s.project_id AS project_id, COUNT(*) AS checkpoints, \
             CAST(SUM(c.size_bytes) AS BIGINT) AS size_bytes \
             FROM checkpoints c LEFT JOIN training_runs r ON r.id = c.run_id LEFT JOIN sessions s ON s.id = r.session_id \
             WHERE c.owner = $1 AND (c.expires_at IS NULL OR c.expires_at > $2) \
             AND ($3 = '' OR s.project_id = $3) GROUP BY s.project_id ORDER BY 3 DESC, 1",
        )
        .bind(&owner.0)
        .bind(micros(Utc::now()))
        .bind(project_id.unwrap_or_default())
        .fetch_all(&self.pool)
        .await?;
        let read = |row: &sqlx::any::AnyRow| {
            Ok(ProjectStorage {
                project_id: row.column("project_id")?,
                checkpoints: row.number("checkpoints")?,
                size_bytes: row.number("size_bytes")?,
            })
        };
        rows.iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sessions::SessionRow;
    use crate::store::testing;
    use chrono::TimeDelta;

    fn checkpoint(path: &str, owner: &str, size_bytes: u64) -> CheckpointRow {
        CheckpointRow { size_bytes, ..testing::checkpoint(path, owner) }
    }

    async fn session_with_run(store: &Store, id: &str, project: Option<&str>) {
        let session = SessionRow { project_id: project.map(str::to_owned), ..testing::session(id, "o") };
        store.insert_session(&session).await.unwrap();
        store.insert_run(&testing::run(&session.id.model(0).0, "o")).await.unwrap();
    }

    #[tokio::test]
    async fn bytes_add_up_per_account_and_project_until_they_are_deleted() {
        let store = testing::empty_store().await;
        session_with_run(&store, "s", Some("p")).await;
        session_with_run(&store, "t", None).await;
        let mine = [
            checkpoint("tinker://s:train:0/weights/a", "o", 10),
            checkpoint("tinker://s:train:0/external_weights/b", "o", 20),
            checkpoint("tinker://t:train:0/sampler_weights/c", "o", 400),
        ];
        let expired = Some(Utc::now() - TimeDelta::seconds(1));
        let gone = CheckpointRow { expires_at: expired, ..checkpoint("tinker://t:train:0/weights/d", "o", 1 << 40) };
        let other = checkpoint("tinker://x/weights/a", "other", 7);
        for row in mine.iter().chain([&gone, &other]) {
            store.put_checkpoint(row).await.unwrap();
        }
        let owner = OwnerId("o".into());
        assert_eq!(store.stored_bytes(&owner, None).await.unwrap(), 430);
        assert_eq!(store.stored_bytes(&owner, Some(&mine[2].path)).await.unwrap(), 30);
        let project = |project_id: Option<&str>, checkpoints, size_bytes| ProjectStorage {
            project_id: project_id.map(str::to_owned),
            checkpoints,
            size_bytes,
        };
        let all = store.storage_by_project(&owner, None).await.unwrap();
        assert_eq!(all, [project(None, 1, 400), project(Some("p"), 2, 30)]);
        assert_eq!(store.storage_by_project(&owner, Some("p")).await.unwrap(), [project(Some("p"), 2, 30)]);
        assert_eq!(store.stored().await.unwrap().len(), 5);
        for row in &mine {
            store.delete_checkpoint(&row.path).await.unwrap();
        }
        assert_eq!(store.stored_bytes(&owner, None).await.unwrap(), 0);
        assert!(store.storage_by_project(&owner, None).await.unwrap().is_empty());
    }
}
