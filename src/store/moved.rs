//! A data directory that was moved, or made from a backup: rows say where their files are now.

use std::path::{Path, PathBuf};

use super::Store;
use super::columns::{Columns, text};
use crate::error::Result;

impl Store {
    /// Rows that name a directory elsewhere get the one of the same run, kind and name below `checkpoints`, where there is
    /// one. → how many directories that were. To be called before anybody reads one.
    pub async fn follow_move(&self, checkpoints: &Path) -> Result<usize> {
        let sql = "SELECT dir FROM checkpoints UNION SELECT source_dir FROM samplers \
             WHERE source_dir IS NOT NULL AND source_dir <> ''";
        let rows = sqlx::query(sql).fetch_all(&self.pool).await?;
        let mut moved = 0;
        for row in rows {
            let old = PathBuf::from(row.text("dir")?);
            let new = checkpoints.join(last_three(&old));
            if old.starts_with(checkpoints) || !new.is_dir() {
                continue;
            }
            let mut transaction = self.pool.begin().await?;
            for sql in [
                "UPDATE checkpoints SET dir = $1 WHERE dir = $2",
                "UPDATE samplers SET source_dir = $1 WHERE source_dir = $2",
            ] {
                sqlx::query(sql).bind(text(&new)?).bind(text(&old)?).execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
            moved += 1;
        }
        Ok(moved)
    }
}

/// `RUN/KIND/NAME.UNIQUE` of a checkpoint's directory, wherever it lies.
pub fn last_three(dir: &Path) -> PathBuf {
    let parts: Vec<_> = dir.components().collect();
    parts[parts.len().saturating_sub(3)..].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoints::CheckpointRow;
    use crate::store::samplers::SamplerSource;
    use crate::store::testing::{checkpoint, empty_store, sampler};

    #[tokio::test]
    async fn rows_follow_their_files_and_others_stay() {
        let store = empty_store().await;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("checkpoints");
        let here = root.join("r/weights/here.1");
        let moved = root.join("r/weights/moved.1");
        for dir in [&here, &moved] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let was = PathBuf::from("/before/checkpoints/r/weights/moved.1");
        let gone = PathBuf::from("/before/checkpoints/r/weights/gone.1");
        let row = |name: &str, dir: &Path| CheckpointRow {
            dir: dir.into(),
            ..checkpoint(&format!("tinker://r/weights/{name}"), "o")
        };
        for row in [row("here", &here), row("moved", &was), row("gone", &gone)] {
            store.put_checkpoint(&row).await.unwrap();
        }
        let path = "tinker://r/weights/moved".parse().unwrap();
        let sampler = sampler("s", 0, "o", SamplerSource::Checkpoint { path, dir: was });
        store.insert_sampler(&sampler).await.unwrap();
        assert_eq!(store.follow_move(&root).await.unwrap(), 1);
        let mut dirs = store.checkpoint_dirs().await.unwrap();
        dirs.sort();
        assert_eq!(dirs, [gone, here, moved.clone()]);
        let source = store.sampler(&sampler.id).await.unwrap().unwrap().source;
        assert!(matches!(source, SamplerSource::Checkpoint { dir, .. } if dir == moved));
        assert_eq!(store.follow_move(&root).await.unwrap(), 0);
    }
}
