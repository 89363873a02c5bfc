//! The audit log: what was done, account by account (protocol §7.19). Events are noted in memory and written together.

use std::sync::{Mutex, MutexGuard};

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::any::AnyRow;

use super::Store;
use super::columns::{Columns, int, json, micros};
use crate::error::Result;
use crate::ids::OwnerId;

/// Events that wait for being written. Beyond it they are counted only: the log must not take the server's memory.
const WAITING: usize = 10_000;

/// Events in one transaction: others wait for the database so long.
const BATCH: usize = 500;

/// `event` is `RESOURCE_ACTION`, as `checkpoint_saved`.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    /// `None` where nobody is known.
    pub owner: Option<OwnerId>,
    pub at: DateTime<Utc>,
    pub event: String,
    pub details: Value,
}

/// Events not yet written, and how many did not fit.
#[derive(Default)]
pub(super) struct Noted {
    waiting: Mutex<(Vec<AuditRow>, u64)>,
    /// Held while some are written: who writes next finds the earlier ones in the table.
    writing: tokio::sync::Mutex<()>,
}

impl Noted {
    fn lock(&self) -> MutexGuard<'_, (Vec<AuditRow>, u64)> {
        self.waiting.lock().expect("no code panics while it holds the noted events")
    }
}

impl Store {
    /// Something was done, just now. Never waits; `details` is an object.
    pub fn note(&self, owner: Option<&OwnerId>, event: &str, details: Value) {
        let row = AuditRow { owner: owner.cloned(), at: Utc::now(), event: event.into(), details };
        let mut noted = self.noted.lock();
        if noted.0.len() < WAITING {
            noted.0.push(row);
        } else {
            noted.1 += 1;
        }
    }

    /// Writes what was noted. On an error what is not written yet is lost, and the error says so.
    pub async fn write_noted(&self) -> Result<()> {
        let _one_at_a_time = self.noted.writing.lock().await;
        let (rows, lost) = std::mem::take(&mut *self.noted.lock());
        if lost > 0 {
            tracing::warn!(events = lost, "the audit log could not keep up; events are missing in it");
        }
        let mut left = rows.len();
        for batch in rows.chunks(BATCH) {
            self.insert_audit(batch).await.map_err(|e| e.context(format_args!("{left} audit events are lost")))?;
            left -= batch.len();
        }
        Ok(())
    }

    async fn insert_audit(&self, rows: &[AuditRow]) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        for row in rows {
            sqlx::query("INSERT INTO audit (owner, at, event, details) VALUES ($1, $2, $3, $4)")
                .bind(row.owner.as_ref().map_or("", |o| &o.0))
                .bind(micros(row.at))
                .bind(&row.event)
                .bind(json(&row.details))
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// An owner's events from `from` to before `to` whose name begins with `prefix`, oldest first: at most `limit`, the
    /// newest of them.
    pub async fn audit(
        &self,
        owner: &OwnerId,
        prefix: &str,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        limit: u64,
    ) -> Result<Vec<AuditRow>> {
        let rows = sqlx::query(
            "SELECT * FROM audit WHERE owner = $1 AND at >= $2 AND at < $3 AND event LIKE $4 \
             ORDER BY at DESC LIMIT $5",
        )
        .bind(&owner.0)
        .bind(micros(from))
        .bind(micros(to))
        .bind(format!("{prefix}%"))
        .bind(int(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().rev().map(read).collect()
    }

    /// The sweep: removes what was written before `time`, and of an owner with more than `rows` events the oldest.
    pub async fn purge_audit(&self, time: DateTime<Utc>, rows: u64) -> Result<()> {
        sqlx::query("DELETE FROM audit WHERE at < $1").bind(micros(time)).execute(&self.pool).await?;
        let owners = sqlx::query("SELECT owner FROM audit GROUP BY owner HAVING COUNT(*) > $1")
            .bind(int(rows))
            .fetch_all(&self.pool)
            .await?;
        for owner in &owners {
            sqlx::query(
                "DELETE FROM audit WHERE owner = $1 AND at <= \
                 (SELECT at FROM audit WHERE owner = $1 ORDER BY at DESC LIMIT 1 OFFSET $2)",
            )
            .bind(owner.text("owner")?)
            .bind(int(rows))
            .execute(&self.pool)
            .await?;
        }
        Ok(())
    }
}

fn read(row: &AnyRow) -> Result<AuditRow> {
    let owner = Some(row.text("owner")?).filter(|o| !o.is_empty()).map(OwnerId);
    Ok(AuditRow { owner, at: row.time("at")?, event: row.text("event")?, details: row.json("details")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;
    use serde_json::json;

    async fn events(store: &Store, owner: &str, prefix: &str) -> Vec<(String, Value)> {
        let (from, to) = (Utc::now() - TimeDelta::hours(1), Utc::now() + TimeDelta::hours(1));
        let rows = store.audit(&OwnerId(owner.into()), prefix, from, to, 100).await.unwrap();
        rows.into_iter().map(|row| (row.event, row.details)).collect()
    }

    #[tokio::test]
    async fn noted_events_are_written_for_their_owner() {
        let store = crate::store::testing::empty_store().await;
        let (a, b) = (OwnerId("a".into()), OwnerId("b".into()));
        store.note(Some(&a), "run_created", json!({"run": "r"}));
        store.note(Some(&a), "checkpoint_saved", json!({"n": 1}));
        store.note(Some(&b), "checkpoint_saved", json!({"n": 2}));
        store.note(None, "key_refused", json!({}));
        assert_eq!(events(&store, "a", "").await, []);
        store.write_noted().await.unwrap();
        let of = |event: &str, details| (event.to_owned(), details);
        let saved = of("checkpoint_saved", json!({"n": 1}));
        // Their times may be the same.
        let mut all = events(&store, "a", "").await;
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        assert_eq!(all, [saved.clone(), of("run_created", json!({"run": "r"}))]);
        assert_eq!(events(&store, "a", "checkpoint_").await, [saved]);
        assert_eq!(events(&store, "", "").await.len(), 1);
        let yesterday = Utc::now() - TimeDelta::days(1);
        assert_eq!(store.audit(&a, "", yesterday, yesterday + TimeDelta::hours(1), 9).await.unwrap(), []);
    }

    #[tokio::test]
    async fn the_log_is_bounded_in_memory_in_rows_of_one_owner_and_in_age() {
        let store = crate::store::testing::empty_store().await;
        let (loud, quiet) = (OwnerId("loud".into()), OwnerId("quiet".into()));
        store.note(Some(&quiet), "run_created", json!({}));
        for n in 0..WAITING + 5 {
            store.note(Some(&loud), "run_created", json!({ "n": n }));
        }
        let waiting = {
            let noted = store.noted.lock();
            (noted.0.len(), noted.1)
        };
        assert_eq!(waiting, (WAITING, 6));
        store.write_noted().await.unwrap();
        store.purge_audit(Utc::now() - TimeDelta::hours(1), 50).await.unwrap();
        let left = events(&store, "loud", "").await;
        assert!((40..=50).contains(&left.len()), "{} rows", left.len());
        assert_eq!(left.last().unwrap().1, json!({ "n": WAITING - 2 }), "the newest stay");
        assert_eq!(events(&store, "quiet", "").await.len(), 1);
        store.purge_audit(Utc::now() + TimeDelta::hours(1), 50).await.unwrap();
        assert_eq!(events(&store, "quiet", "").await, []);
    }
}
