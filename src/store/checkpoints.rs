//! Checkpoints (protocol §7.14, chapter 13). An expired one is invisible to everything but the sweep.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;

use super::columns::{Columns, KIND, bind_kind, corrupt, int, json, micros, text};
use super::{Metadata, Store};
use crate::command::RunKind;
use crate::error::Result;
use crate::ids::{CheckpointKind, CheckpointPath, ModelId, OwnerId};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRow {
    pub path: CheckpointPath,
    pub owner: OwnerId,
    /// Served name, without the `:full` suffix.
    pub base_model: String,
    pub kind: RunKind,
    pub dir: PathBuf,
    pub size_bytes: u64,
    pub created_at: DateTime<Utc>,
    /// `None` = never.
    pub expires_at: Option<DateTime<Utc>>,
    pub public: bool,
    pub user_metadata: Metadata,
}

/// The row `$1, $2, $3` unless it expired before `$4`.
const THIS: &str = "run_id = $1 AND kind = $2 AND name = $3 AND (expires_at IS NULL OR expires_at > $4)";

impl Store {
    /// Inserts the row, or replaces the one of the same path. Of that it keeps only that it was published, unless it
    /// had expired; the lifetime is the new row's alone. Returns the directory of the replaced row (also of an expired
    /// one) when it is another: nothing refers to it any more.
    pub async fn put_checkpoint(&self, row: &CheckpointRow) -> Result<Option<PathBuf>> {
        let dir = text(&row.dir)?;
        let key = (&row.path.run.0, row.path.kind.segment(), &row.path.name);
        let mut transaction = self.pool.begin().await?;
        let replaced = sqlx::query(
            "DELETE FROM checkpoints WHERE run_id = $1 AND kind = $2 AND name = $3 RETURNING dir, public, expires_at",
        )
        .bind(key.0)
        .bind(key.1)
        .bind(key.2)
        .fetch_optional(&mut *transaction)
        .await?;
        let public = row.public || replaced.as_ref().map(was_public).transpose()?.unwrap_or(false);
        let sql = format!(
            "INSERT INTO checkpoints (run_id, kind, name, owner, dir, size_bytes, created_at, expires_at, public, \
             user_metadata, base_model, {KIND}) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
        );
        let query = sqlx::query(&sql)
            .bind(key.0)
            .bind(key.1)
            .bind(key.2)
            .bind(&row.owner.0)
            .bind(dir)
            .bind(int(row.size_bytes))
            .bind(micros(row.created_at))
            .bind(row.expires_at.map(micros))
            .bind(i64::from(public))
            .bind(json(&row.user_metadata))
            .bind(&row.base_model);
        bind_kind(query, &row.kind).execute(&mut *transaction).await?;
        transaction.commit().await?;
        let replaced = replaced.map(|old| old.text("dir")).transpose()?;
        Ok(replaced.filter(|old| old != dir).map(PathBuf::from))
    }

    pub async fn checkpoint(&self, path: &CheckpointPath) -> Result<Option<CheckpointRow>> {
        let sql = format!("SELECT * FROM checkpoints WHERE {THIS}");
        let row = at_path(&sql, path).fetch_optional(&self.pool).await?;
        row.as_ref().map(read).transpose()
    }

    /// A run's checkpoints of every kind, newest first.
    pub async fn run_checkpoints(&self, run: &ModelId) -> Result<Vec<CheckpointRow>> {
        let rows = sqlx::query(
            "SELECT * FROM checkpoints WHERE run_id = $1 AND (expires_at IS NULL OR expires_at > $2) \
             ORDER BY created_at DESC, kind, name",
        )
        .bind(&run.0)
        .bind(micros(Utc::now()))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(read).collect()
    }

    /// A run's newest checkpoint of one kind; of the published ones alone with `published`.
    pub async fn last_checkpoint(
        &self,
        run: &ModelId,
        kind: CheckpointKind,
        published: bool,
    ) -> Result<Option<CheckpointRow>> {
        let row = sqlx::query(
            "SELECT * FROM checkpoints WHERE run_id = $1 AND kind = $2 AND (expires_at IS NULL OR expires_at > $3) \
             AND public >= $4 ORDER BY created_at DESC, name LIMIT 1",
        )
        .bind(&run.0)
        .bind(kind.segment())
        .bind(micros(Utc::now()))
        .bind(i64::from(published))
        .fetch_optional(&self.pool)
        .await?;
        row.as_ref().map(read).transpose()
    }

    /// The directories of all rows, expired ones among them.
    pub async fn checkpoint_dirs(&self) -> Result<Vec<PathBuf>> {
        let rows = sqlx::query("SELECT dir FROM checkpoints").fetch_all(&self.pool).await?;
        rows.iter().map(|row| row.text("dir").map(PathBuf::from)).collect()
    }

    /// Removes the row and returns its directory; `None` when there is no such row.
    pub async fn delete_checkpoint(&self, path: &CheckpointPath) -> Result<Option<PathBuf>> {
        let sql = format!("DELETE FROM checkpoints WHERE {THIS} RETURNING dir");
        let row = at_path(&sql, path).fetch_optional(&self.pool).await?;
        row.map(|row| row.text("dir").map(PathBuf::from)).transpose()
    }

    /// Publishes or withdraws it; false when there is no such row.
    pub async fn set_checkpoint_public(&self, path: &CheckpointPath, public: bool) -> Result<bool> {
        let sql = format!("UPDATE checkpoints SET public = $5 WHERE {THIS}");
        let done = at_path(&sql, path).bind(i64::from(public)).execute(&self.pool).await?;
        Ok(done.rows_affected() > 0)
    }

    /// Sets or, with `None`, removes the expiry; false when there is no such row.
    pub async fn set_checkpoint_expiry(
        &self,
        path: &CheckpointPath,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<bool> {
        let sql = format!("UPDATE checkpoints SET expires_at = $5 WHERE {THIS}");
        let done = at_path(&sql, path).bind(expires_at.map(micros)).execute(&self.pool).await?;
        Ok(done.rows_affected() > 0)
    }

    /// The sweep: removes the rows that expired by `now` and returns their directories.
    pub async fn take_expired_checkpoints(&self, now: DateTime<Utc>) -> Result<Vec<PathBuf>> {
        let query = sqlx::query("DELETE FROM checkpoints WHERE expires_at <= $1 RETURNING dir").bind(micros(now));
        let rows = query.fetch_all(&self.pool).await?;
        rows.iter().map(|row| row.text("dir").map(PathBuf::from)).collect()
    }
}

/// `sql` with the parameters of `THIS` bound.
fn at_path<'q>(sql: &'q str, path: &'q CheckpointPath) -> super::columns::Query<'q> {
    sqlx::query(sql).bind(&path.run.0).bind(path.kind.segment()).bind(&path.name).bind(micros(Utc::now()))
}

fn was_public(row: &AnyRow) -> Result<bool> {
    Ok(row.flag("public")? && row.optional_time("expires_at")?.is_none_or(|at| at > Utc::now()))
}

pub(super) fn read(row: &AnyRow) -> Result<CheckpointRow> {
    let kind = CheckpointKind::from_segment(&row.text("kind")?).ok_or_else(|| corrupt("kind"))?;
    Ok(CheckpointRow {
        path: CheckpointPath { run: ModelId(row.text("run_id")?), kind, name: row.text("name")? },
        owner: OwnerId(row.text("owner")?),
        base_model: row.text("base_model")?,
        kind: row.kind()?,
        dir: row.text("dir")?.into(),
        size_bytes: row.number("size_bytes")?,
        created_at: row.time("created_at")?,
        expires_at: row.optional_time("expires_at")?,
        public: row.flag("public")?,
        user_metadata: row.json("user_metadata")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoint_lists::Listed;
    use crate::store::testing::{checkpoint, empty_store, now};
    use chrono::TimeDelta;

    fn row(path: &str, created_seconds_ago: i64) -> CheckpointRow {
        CheckpointRow {
            size_bytes: 1 << 40,
            created_at: now() - TimeDelta::seconds(created_seconds_ago),
            user_metadata: Metadata::from([("k".into(), "v".into())]),
            ..checkpoint(path, "o")
        }
    }

    #[tokio::test]
    async fn replacing_keeps_nothing_but_the_publication_and_returns_the_old_directory() {
        let store = empty_store().await;
        let hour = Some(now() + TimeDelta::hours(1));
        let first = CheckpointRow { public: true, expires_at: hour, ..row("tinker://r/weights/a", 5) };
        assert_eq!(store.put_checkpoint(&first).await.unwrap(), None);
        assert_eq!(store.checkpoint(&first.path).await.unwrap().as_ref(), Some(&first));
        let second = CheckpointRow {
            dir: "/data/second".into(),
            user_metadata: Metadata::new(),
            ..row("tinker://r/weights/a", 1)
        };
        assert_eq!(store.put_checkpoint(&second).await.unwrap(), Some(first.dir));
        assert_eq!(store.put_checkpoint(&second).await.unwrap(), None, "the directory is still in use");
        let second = CheckpointRow { public: true, ..second };
        assert_eq!(store.checkpoint_dirs().await.unwrap(), std::slice::from_ref(&second.dir));
        assert_eq!(store.run_checkpoints(&second.path.run).await.unwrap(), std::slice::from_ref(&second));
        assert_eq!(store.checkpoint(&"tinker://r/sampler_weights/a".parse().unwrap()).await.unwrap(), None);
        assert_eq!(store.delete_checkpoint(&second.path).await.unwrap(), Some(second.dir));
        assert_eq!(store.delete_checkpoint(&second.path).await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_expired_row_is_gone_for_all_but_the_sweep() {
        let store = empty_store().await;
        let past = Some(now() - TimeDelta::seconds(1));
        let gone = CheckpointRow { expires_at: past, ..row("tinker://r/weights/gone", 2) };
        let kept = CheckpointRow { expires_at: Some(now() + TimeDelta::hours(1)), ..row("tinker://r/weights/kept", 1) };
        for checkpoint in [&gone, &kept, &row("tinker://r/weights/forever", 3)] {
            store.put_checkpoint(checkpoint).await.unwrap();
        }
        assert_eq!(store.checkpoint(&gone.path).await.unwrap(), None);
        assert_eq!(store.run_checkpoints(&gone.path.run).await.unwrap().len(), 2);
        let all = Listed { owner: &gone.owner, published: true, project_id: None };
        assert_eq!(store.checkpoints(all, 10, 0).await.unwrap().total, 2);
        assert!(!store.set_checkpoint_public(&gone.path, true).await.unwrap());
        assert!(!store.set_checkpoint_expiry(&gone.path, None).await.unwrap());
        assert_eq!(store.delete_checkpoint(&gone.path).await.unwrap(), None);
        assert_eq!(store.take_expired_checkpoints(now()).await.unwrap(), [gone.dir]);
        assert!(store.take_expired_checkpoints(now()).await.unwrap().is_empty());
        // A name that was published in an earlier life is not so in the next.
        let public = CheckpointRow { public: true, expires_at: past, ..row("tinker://r/weights/gone", 2) };
        store.put_checkpoint(&public).await.unwrap();
        store.put_checkpoint(&CheckpointRow { expires_at: None, public: false, ..public.clone() }).await.unwrap();
        assert!(!store.checkpoint(&public.path).await.unwrap().unwrap().public);
        assert_eq!(store.checkpoint(&kept.path).await.unwrap(), Some(kept));
    }

    #[tokio::test]
    async fn publishing_and_expiry_can_be_set_and_taken_back() {
        let store = empty_store().await;
        let mut checkpoint = row("tinker://r/weights/a", 1);
        store.put_checkpoint(&checkpoint).await.unwrap();
        for (public, expires_at) in [(true, Some(now() + TimeDelta::hours(1))), (false, None)] {
            assert!(store.set_checkpoint_public(&checkpoint.path, public).await.unwrap());
            assert!(store.set_checkpoint_expiry(&checkpoint.path, expires_at).await.unwrap());
            checkpoint.public = public;
            checkpoint.expires_at = expires_at;
            assert_eq!(store.checkpoint(&checkpoint.path).await.unwrap().as_ref(), Some(&checkpoint));
        }
    }
}
