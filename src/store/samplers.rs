//! Sampling sessions (protocol §7.11, §7.12).

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;

use super::columns::{Columns, corrupt, micros, text};
use super::{Store, taken};
use crate::error::{Error, Result};
use crate::ids::{CheckpointPath, ModelId, OwnerId, SamplerId, SessionId};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplerRow {
    pub id: SamplerId,
    pub session: SessionId,
    pub owner: OwnerId,
    pub base_model: String,
    pub source: SamplerSource,
    pub created_at: DateTime<Utc>,
}

/// Whose weights it samples from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplerSource {
    Base,
    /// The files that `path` named when the sampler was created: it samples from these or not at all.
    Checkpoint {
        path: CheckpointPath,
        dir: PathBuf,
    },
    /// A snapshot taken of this run.
    Snapshot(ModelId),
}

impl Store {
    /// A user error when the id is taken.
    pub async fn insert_sampler(&self, row: &SamplerRow) -> Result<()> {
        let (source, path, dir, run) = match &row.source {
            SamplerSource::Base => ("base", None, None, None),
            SamplerSource::Checkpoint { path, dir } => {
                ("checkpoint", Some(path.to_string()), Some(text(dir)?.to_owned()), None)
            }
            SamplerSource::Snapshot(run) => ("snapshot", None, None, Some(run.0.clone())),
        };
        sqlx::query(
            "INSERT INTO samplers (id, session_id, owner, base_model, source, source_path, source_dir, source_run, \
             created_at, clients_joined) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0)",
        )
        .bind(&row.id.0)
        .bind(&row.session.0)
        .bind(&row.owner.0)
        .bind(&row.base_model)
        .bind(source)
        .bind(path)
        .bind(dir)
        .bind(run)
        .bind(micros(row.created_at))
        .execute(&self.pool)
        .await
        .map_err(taken(format_args!("sampler {}", row.id)))?;
        Ok(())
    }

    pub async fn sampler(&self, id: &SamplerId) -> Result<Option<SamplerRow>> {
        let query = sqlx::query("SELECT * FROM samplers WHERE id = $1").bind(&id.0);
        query.fetch_optional(&self.pool).await?.as_ref().map(read).transpose()
    }

    /// A session's samplers, oldest first.
    pub async fn session_samplers(&self, session: &SessionId) -> Result<Vec<SamplerId>> {
        let query = sqlx::query("SELECT id FROM samplers WHERE session_id = $1 ORDER BY created_at, id");
        let rows = query.bind(&session.0).fetch_all(&self.pool).await?;
        rows.iter().map(|row| row.text("id").map(SamplerId)).collect()
    }

    /// An owner's samplers over unnamed snapshots, of this run or of all, in sessions that go on.
    pub async fn open_snapshots(&self, owner: &OwnerId, run: Option<&ModelId>) -> Result<u64> {
        let row = sqlx::query(
            "SELECT COUNT(*) AS total FROM samplers WHERE owner = $1 AND source = 'snapshot' \
             AND ($2 = '' OR source_run = $2) \
             AND session_id IN (SELECT id FROM sessions WHERE owner = $1 AND finished_at IS NULL)",
        )
        .bind(&owner.0)
        .bind(run.map_or("", |r| &r.0))
        .fetch_one(&self.pool)
        .await?;
        row.number("total")
    }

    /// The number of the client that joins, from 1, never given twice. Not found when there is no such sampler.
    pub async fn join_sampler(&self, id: &SamplerId) -> Result<u64> {
        let row = sqlx::query(
            "UPDATE samplers SET clients_joined = clients_joined + 1 WHERE id = $1 RETURNING clients_joined",
        )
        .bind(&id.0)
        .fetch_optional(&self.pool)
        .await?;
        row.ok_or_else(|| Error::not_found(format!("sampler {id} does not exist")))?.number("clients_joined")
    }
}

fn read(row: &AnyRow) -> Result<SamplerRow> {
    let source = match row.text("source")?.as_str() {
        "base" => SamplerSource::Base,
        "checkpoint" => SamplerSource::Checkpoint {
            path: row.text("source_path")?.parse().map_err(|_| corrupt("source_path"))?,
            dir: row.text("source_dir")?.into(),
        },
        "snapshot" => SamplerSource::Snapshot(ModelId(row.text("source_run")?)),
        _ => return Err(corrupt("source")),
    };
    Ok(SamplerRow {
        id: SamplerId(row.text("id")?),
        session: SessionId(row.text("session_id")?),
        owner: OwnerId(row.text("owner")?),
        base_model: row.text("base_model")?,
        source,
        created_at: row.time("created_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Category;
    use crate::store::testing::{empty_store, sampler};

    fn row(n: u64, source: SamplerSource) -> SamplerRow {
        sampler("s", n, "o", source)
    }

    #[tokio::test]
    async fn each_source_reads_back_as_written() {
        let store = empty_store().await;
        let rows = [
            row(0, SamplerSource::Base),
            row(
                1,
                SamplerSource::Checkpoint {
                    path: "tinker://s:train:0/sampler_weights/a".parse().unwrap(),
                    dir: "/data/a.1".into(),
                },
            ),
            row(2, SamplerSource::Snapshot(ModelId("s:train:0".into()))),
        ];
        for sampler in &rows {
            store.insert_sampler(sampler).await.unwrap();
            assert_eq!(store.sampler(&sampler.id).await.unwrap().as_ref(), Some(sampler));
        }
        assert_eq!(store.insert_sampler(&rows[0]).await.unwrap_err().category, Category::User);
        assert_eq!(store.session_samplers(&rows[0].session).await.unwrap(), rows.map(|r| r.id));
    }

    #[tokio::test]
    async fn clients_are_counted_from_one() {
        let store = empty_store().await;
        let sampler = row(0, SamplerSource::Base);
        store.insert_sampler(&sampler).await.unwrap();
        for n in 1..4 {
            assert_eq!(store.join_sampler(&sampler.id).await.unwrap(), n);
        }
        let unknown = SessionId("s".into()).sampler(9);
        assert_eq!(store.join_sampler(&unknown).await.unwrap_err().category, Category::NotFound);
    }
}
