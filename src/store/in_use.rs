//! Which checkpoint directories somebody still reads: those of listed checkpoints, and those that a sampler of an open
//! session was created over (protocol §13.3).

use std::path::{Path, PathBuf};

use super::Store;
use super::columns::{Columns, text};
use crate::error::Result;
use crate::ids::SessionId;

pub(super) const OF_OPEN_SESSIONS: &str = "session_id IN (SELECT id FROM sessions WHERE finished_at IS NULL)";

impl Store {
    pub async fn dir_is_in_use(&self, dir: &Path) -> Result<bool> {
        let sql = format!(
            "SELECT COUNT(*) AS users FROM (SELECT 1 AS one FROM checkpoints WHERE dir = $1 UNION ALL \
             SELECT 1 AS one FROM samplers WHERE source_dir = $1 AND {OF_OPEN_SESSIONS}) AS readers"
        );
        let row = sqlx::query(&sql).bind(text(dir)?).fetch_one(&self.pool).await?;
        Ok(row.number("users")? > 0)
    }

    /// Directories that samplers of open sessions read, listed checkpoints' and others.
    pub async fn sampled_dirs(&self) -> Result<Vec<PathBuf>> {
        let sql = format!(
            "SELECT DISTINCT source_dir FROM samplers WHERE source_dir IS NOT NULL AND source_dir <> '' \
             AND {OF_OPEN_SESSIONS}"
        );
        let rows = sqlx::query(&sql).fetch_all(&self.pool).await?;
        rows.iter().map(|row| row.text("source_dir").map(PathBuf::from)).collect()
    }

    /// Directories that a session's samplers read and no listed checkpoint names.
    pub async fn unlisted_dirs_of(&self, session: &SessionId) -> Result<Vec<PathBuf>> {
        let rows = sqlx::query(
            "SELECT DISTINCT source_dir FROM samplers WHERE session_id = $1 AND source_dir IS NOT NULL \
             AND source_dir <> '' AND source_dir NOT IN (SELECT dir FROM checkpoints)",
        )
        .bind(&session.0)
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(|row| row.text("source_dir").map(PathBuf::from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Utc;

    use crate::store::checkpoints::CheckpointRow;
    use crate::store::samplers::SamplerSource;
    use crate::store::sessions::Finish;
    use crate::store::testing::{checkpoint, empty_store, sampler, session};

    #[tokio::test]
    async fn a_sampler_keeps_a_directory_until_its_session_ends() {
        let store = empty_store().await;
        let dir = Path::new("/data/a.1");
        let session = session("s", "o");
        store.insert_session(&session).await.unwrap();
        assert!(!store.dir_is_in_use(dir).await.unwrap());
        let checkpoint = CheckpointRow { dir: dir.into(), ..checkpoint("tinker://s:train:0/weights/a", "o") };
        store.put_checkpoint(&checkpoint).await.unwrap();
        assert!(store.dir_is_in_use(dir).await.unwrap());
        let source = SamplerSource::Checkpoint { path: checkpoint.path.clone(), dir: dir.into() };
        store.insert_sampler(&sampler("s", 0, "o", source)).await.unwrap();
        assert!(store.unlisted_dirs_of(&session.id).await.unwrap().is_empty());
        store.delete_checkpoint(&checkpoint.path).await.unwrap();
        assert!(store.dir_is_in_use(dir).await.unwrap());
        assert_eq!(store.sampled_dirs().await.unwrap(), [dir]);
        assert_eq!(store.unlisted_dirs_of(&session.id).await.unwrap(), [dir]);
        store
            .finish_session(&session.id, &Finish { at: Utc::now(), reason: "success".into(), detail: None })
            .await
            .unwrap();
        assert!(!store.dir_is_in_use(dir).await.unwrap());
        assert!(store.sampled_dirs().await.unwrap().is_empty());
    }
}
