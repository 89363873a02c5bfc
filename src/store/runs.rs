//! Training runs (protocol §7.14).

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;

use super::checkpoint_lists::Listed;
use super::columns::{Columns, KIND, bind_kind, int, json, micros};
use super::{Metadata, Page, Store, taken};
use crate::command::{Fault, RunKind};
use crate::error::Result;
use crate::ids::{ModelId, OwnerId, SessionId};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    pub id: ModelId,
    pub session: SessionId,
    pub owner: OwnerId,
    /// Served name, without the `:full` suffix.
    pub base_model: String,
    pub kind: RunKind,
    pub user_metadata: Metadata,
    pub created_at: DateTime<Utc>,
    pub last_request_at: DateTime<Utc>,
    pub corrupted: bool,
    /// Why it is marked as corrupted.
    pub fault: Option<Fault>,
}

/// Rows of `$1`'s runs, `$2` NULL or the project of their session; with `$3` = 1 also those runs of others that have a
/// published checkpoint now (`$4`).
const LISTED: &str = "FROM training_runs WHERE (owner = $1 OR ($3 = 1 AND id IN (SELECT run_id FROM checkpoints \
    WHERE public = 1 AND kind <> 'external_weights' AND (expires_at IS NULL OR expires_at > $4)))) \
    AND ($2 IS NULL OR session_id IN (SELECT id FROM sessions WHERE project_id = $2))";

impl Store {
    /// A user error when the id is taken.
    pub async fn insert_run(&self, row: &RunRow) -> Result<()> {
        let sql = format!(
            "INSERT INTO training_runs (id, session_id, owner, base_model, user_metadata, created_at, last_request_at, \
             corrupted, {KIND}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
        );
        let query = sqlx::query(&sql)
            .bind(&row.id.0)
            .bind(&row.session.0)
            .bind(&row.owner.0)
            .bind(&row.base_model)
            .bind(json(&row.user_metadata))
            .bind(micros(row.created_at))
            .bind(micros(row.last_request_at))
            .bind(i64::from(row.corrupted));
        let done = bind_kind(query, &row.kind).execute(&self.pool).await;
        done.map_err(taken(format_args!("training run {}", row.id)))?;
        Ok(())
    }

    pub async fn run(&self, id: &ModelId) -> Result<Option<RunRow>> {
        let query = sqlx::query("SELECT * FROM training_runs WHERE id = $1").bind(&id.0);
        query.fetch_optional(&self.pool).await?.as_ref().map(read).transpose()
    }

    /// The runs of a list, newest first.
    pub async fn runs(&self, of: Listed<'_>, limit: u64, offset: u64) -> Result<Page<RunRow>> {
        let sql = format!("SELECT * {LISTED} ORDER BY created_at DESC, id DESC LIMIT $5 OFFSET $6");
        let rows = bound(&sql, of).bind(int(limit)).bind(int(offset)).fetch_all(&self.pool).await?;
        let sql = format!("SELECT COUNT(*) AS total {LISTED}");
        let count = bound(&sql, of).fetch_one(&self.pool).await?;
        Ok(Page { rows: rows.iter().map(read).collect::<Result<_>>()?, total: count.number("total")? })
    }

    /// A session's runs, oldest first.
    pub async fn session_runs(&self, session: &SessionId) -> Result<Vec<ModelId>> {
        let query = sqlx::query("SELECT id FROM training_runs WHERE session_id = $1 ORDER BY created_at, id");
        let rows = query.bind(&session.0).fetch_all(&self.pool).await?;
        rows.iter().map(|row| row.text("id").map(ModelId)).collect()
    }

    /// Every run's id.
    pub async fn run_ids(&self) -> Result<Vec<ModelId>> {
        let rows = sqlx::query("SELECT id FROM training_runs").fetch_all(&self.pool).await?;
        rows.iter().map(|row| row.text("id").map(ModelId)).collect()
    }

    /// Marks the run as corrupted, for this reason, or takes the mark away.
    pub async fn mark_run(&self, id: &ModelId, fault: Option<&Fault>) -> Result<()> {
        sqlx::query("UPDATE training_runs SET corrupted = $2, fault = $3 WHERE id = $1")
            .bind(&id.0)
            .bind(i64::from(fault.is_some()))
            .bind(fault.map(json))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Sets `last_request_at`; a run that has no row yet stays without one.
    pub async fn touch_run(&self, id: &ModelId, at: DateTime<Utc>) -> Result<()> {
        let query = sqlx::query("UPDATE training_runs SET last_request_at = $2 WHERE id = $1");
        query.bind(&id.0).bind(micros(at)).execute(&self.pool).await?;
        Ok(())
    }
}

fn bound<'q>(sql: &'q str, of: Listed<'q>) -> super::columns::Query<'q> {
    sqlx::query(sql)
        .bind(&of.owner.0)
        .bind(of.project_id.map(str::to_owned))
        .bind(i64::from(of.published))
        .bind(micros(Utc::now()))
}

fn read(row: &AnyRow) -> Result<RunRow> {
    Ok(RunRow {
        id: ModelId(row.text("id")?),
        session: SessionId(row.text("session_id")?),
        owner: OwnerId(row.text("owner")?),
        base_model: row.text("base_model")?,
        kind: row.kind()?,
        user_metadata: row.json("user_metadata")?,
        created_at: row.time("created_at")?,
        last_request_at: row.time("last_request_at")?,
        corrupted: row.flag("corrupted")?,
        fault: row.optional_json("fault")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::LoraConfig;
    use crate::error::Category;
    use crate::store::sessions::SessionRow;
    use crate::store::testing::{at, empty_store, run, session};

    fn row(id: &str, owner: &str, created: i64) -> RunRow {
        RunRow { created_at: at(created), last_request_at: at(created), ..run(id, owner) }
    }

    #[tokio::test]
    async fn a_row_reads_back_as_written() {
        let store = empty_store().await;
        let kind = RunKind::Lora(LoraConfig {
            rank: 32,
            seed: u64::MAX - 1,
            train_attn: true,
            train_mlp: false,
            train_unembed: true,
        });
        let lora = RunRow { kind, ..row("s:train:0", "o", 1) };
        let full = RunRow { corrupted: true, ..row("s:train:1", "o", 2) };
        for run in [&lora, &full] {
            store.insert_run(run).await.unwrap();
            assert_eq!(store.run(&run.id).await.unwrap().as_ref(), Some(run));
        }
        assert_eq!(store.insert_run(&lora).await.unwrap_err().category, Category::User);
        assert_eq!(store.session_runs(&lora.session).await.unwrap(), [lora.id.clone(), full.id]);
        store.touch_run(&lora.id, at(7)).await.unwrap();
        assert_eq!(store.run(&lora.id).await.unwrap().unwrap().last_request_at, at(7));
        let unknown = ModelId("s:train:9".into());
        store.touch_run(&unknown, at(7)).await.unwrap();
        assert_eq!(store.run(&unknown).await.unwrap(), None);
    }

    #[tokio::test]
    async fn lists_are_per_owner_newest_first_with_the_total() {
        let store = empty_store().await;
        for i in 0..5 {
            let session = if i < 2 { "p" } else { "q" };
            store.insert_run(&row(&format!("{session}:train:{i}"), "o", i)).await.unwrap();
        }
        store.insert_run(&row("p:train:9", "other", 9)).await.unwrap();
        let session = SessionRow { project_id: Some("project".into()), ..session("p", "o") };
        store.insert_session(&session).await.unwrap();
        let owner = OwnerId("o".into());
        let ids = |page: &Page<RunRow>| page.rows.iter().map(|r| r.id.0.clone()).collect::<Vec<_>>();
        let of = |project_id| Listed { owner: &owner, published: true, project_id };
        let page = store.runs(of(None), 2, 1).await.unwrap();
        assert_eq!((ids(&page), page.total), (vec!["q:train:3".into(), "q:train:2".into()], 5));
        let page = store.runs(of(Some("project")), 10, 0).await.unwrap();
        assert_eq!((ids(&page), page.total), (vec!["p:train:1".into(), "p:train:0".into()], 2));
        assert_eq!(store.runs(of(Some("none")), 10, 0).await.unwrap().total, 0);
    }
}
