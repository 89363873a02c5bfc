//! Sessions (protocol chapter 3).

use chrono::{DateTime, Utc};
use sqlx::any::AnyRow;

use super::columns::{Columns, int, json, micros};
use super::{Metadata, Store, found, taken};
use crate::error::Result;
use crate::ids::{OwnerId, SessionId};

#[derive(Clone, Debug, PartialEq)]
pub struct SessionRow {
    pub id: SessionId,
    pub owner: OwnerId,
    pub created_at: DateTime<Utc>,
    pub last_heartbeat_at: DateTime<Utc>,
    pub tags: Vec<String>,
    pub user_metadata: Metadata,
    pub sdk_version: String,
    pub project_id: Option<String>,
    pub display_name: Option<String>,
    /// `None` while it is active.
    pub finished: Option<Finish>,
}

/// How a session ended, in the client's words.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub at: DateTime<Utc>,
    pub reason: String,
    pub detail: Option<String>,
}

impl Store {
    /// A user error when the id is taken.
    pub async fn insert_session(&self, row: &SessionRow) -> Result<()> {
        let finish = row.finished.as_ref();
        sqlx::query(
            "INSERT INTO sessions (id, owner, created_at, last_heartbeat_at, tags, user_metadata, sdk_version, \
             project_id, display_name, finished_at, finish_reason, finish_detail) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        )
        .bind(&row.id.0)
        .bind(&row.owner.0)
        .bind(micros(row.created_at))
        .bind(micros(row.last_heartbeat_at))
        .bind(json(&row.tags))
        .bind(json(&row.user_metadata))
        .bind(&row.sdk_version)
        .bind(row.project_id.clone())
        .bind(row.display_name.clone())
        .bind(finish.map(|f| micros(f.at)))
        .bind(finish.map(|f| f.reason.clone()))
        .bind(finish.and_then(|f| f.detail.clone()))
        .execute(&self.pool)
        .await
        .map_err(taken(format_args!("session {}", row.id)))?;
        Ok(())
    }

    pub async fn session(&self, id: &SessionId) -> Result<Option<SessionRow>> {
        let row = sqlx::query("SELECT * FROM sessions WHERE id = $1").bind(&id.0).fetch_optional(&self.pool).await?;
        row.as_ref().map(read).transpose()
    }

    /// An owner's sessions, newest first; with `project_id` only those of this project.
    pub async fn sessions(
        &self,
        owner: &OwnerId,
        project_id: Option<&str>,
        limit: u64,
        offset: u64,
    ) -> Result<Vec<SessionId>> {
        let rows = sqlx::query(
            "SELECT id FROM sessions WHERE owner = $1 AND ($2 IS NULL OR project_id = $2) \
             ORDER BY created_at DESC, id DESC LIMIT $3 OFFSET $4",
        )
        .bind(&owner.0)
        .bind(project_id.map(str::to_owned))
        .bind(int(limit))
        .bind(int(offset))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(|row| row.text("id").map(SessionId)).collect()
    }

    /// An owner's sessions that come after `(created_at, id)` in the order newest first; all of them without it.
    pub async fn sessions_after(
        &self,
        owner: &OwnerId,
        last: Option<&(DateTime<Utc>, SessionId)>,
        limit: u64,
    ) -> Result<Vec<SessionRow>> {
        let rows = sqlx::query(
            "SELECT * FROM sessions WHERE owner = $1 AND (created_at < $2 OR (created_at = $2 AND id < $3)) \
             ORDER BY created_at DESC, id DESC LIMIT $4",
        )
        .bind(&owner.0)
        .bind(last.map_or(i64::MAX, |(at, _)| micros(*at)))
        .bind(last.map_or_else(String::new, |(_, id)| id.0.clone()))
        .bind(int(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(read).collect()
    }

    /// Number and bytes of a session's checkpoints.
    pub async fn session_checkpoints(&self, id: &SessionId) -> Result<(u64, u64)> {
        let row = sqlx::query(
            "SELECT COUNT(*) AS total, CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) AS bytes FROM checkpoints \
             WHERE run_id IN (SELECT id FROM training_runs WHERE session_id = $1) \
             AND (expires_at IS NULL OR expires_at > $2)",
        )
        .bind(&id.0)
        .bind(micros(Utc::now()))
        .fetch_one(&self.pool)
        .await?;
        Ok((row.number("total")?, row.number("bytes")?))
    }

    /// Not found when there is no such session.
    pub async fn heartbeat_session(&self, id: &SessionId, at: DateTime<Utc>) -> Result<()> {
        let done = sqlx::query("UPDATE sessions SET last_heartbeat_at = $2 WHERE id = $1")
            .bind(&id.0)
            .bind(micros(at))
            .execute(&self.pool)
            .await?;
        found(done.rows_affected(), format_args!("session {id}"))
    }

    /// The first reason stays; finishing again changes nothing. Not found when there is no such session.
    pub async fn finish_session(&self, id: &SessionId, finish: &Finish) -> Result<()> {
        let done = sqlx::query(
            "UPDATE sessions SET finish_reason = COALESCE(finish_reason, $3), \
             finish_detail = CASE WHEN finished_at IS NULL THEN $4 ELSE finish_detail END, \
             finished_at = COALESCE(finished_at, $2) WHERE id = $1",
        )
        .bind(&id.0)
        .bind(micros(finish.at))
        .bind(&finish.reason)
        .bind(finish.detail.clone())
        .execute(&self.pool)
        .await?;
        found(done.rows_affected(), format_args!("session {id}"))
    }

    /// Open sessions whose last heartbeat lies between these times, oldest first.
    pub async fn silent_between(
        &self,
        (from, to): (DateTime<Utc>, DateTime<Utc>),
        limit: u64,
    ) -> Result<Vec<SessionRow>> {
        let rows = sqlx::query(
            "SELECT * FROM sessions WHERE finished_at IS NULL AND last_heartbeat_at >= $1 AND last_heartbeat_at < $2 \
             ORDER BY last_heartbeat_at LIMIT $3",
        )
        .bind(micros(from))
        .bind(micros(to))
        .bind(int(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(read).collect()
    }

    /// Up to `limit` open sessions whose last heartbeat came before `time`, the most silent first.
    pub async fn silent_sessions(&self, time: DateTime<Utc>, limit: u64) -> Result<Vec<SessionRow>> {
        let rows = sqlx::query(
            "SELECT * FROM sessions WHERE finished_at IS NULL AND last_heartbeat_at < $1 \
             ORDER BY last_heartbeat_at, id LIMIT $2",
        )
        .bind(micros(time))
        .bind(int(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(read).collect()
    }

    /// Not found when there is no such session.
    pub async fn set_session_project(&self, id: &SessionId, project_id: &str) -> Result<()> {
        let done = sqlx::query("UPDATE sessions SET project_id = $2 WHERE id = $1")
            .bind(&id.0)
            .bind(project_id)
            .execute(&self.pool)
            .await?;
        found(done.rows_affected(), format_args!("session {id}"))
    }
}

fn read(row: &AnyRow) -> Result<SessionRow> {
    let finished = match row.optional_time("finished_at")? {
        Some(at) => Some(Finish { at, reason: row.text("finish_reason")?, detail: row.column("finish_detail")? }),
        None => None,
    };
    Ok(SessionRow {
        id: SessionId(row.text("id")?),
        owner: OwnerId(row.text("owner")?),
        created_at: row.time("created_at")?,
        last_heartbeat_at: row.time("last_heartbeat_at")?,
        tags: row.json("tags")?,
        user_metadata: row.json("user_metadata")?,
        sdk_version: row.text("sdk_version")?,
        project_id: row.column("project_id")?,
        display_name: row.column("display_name")?,
        finished,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Category;
    use crate::store::testing::{at, empty_store, session};

    fn row(id: &str, owner: &str, created: i64) -> SessionRow {
        SessionRow {
            created_at: at(created),
            last_heartbeat_at: at(created),
            tags: vec!["a,b".into(), "ü".into()],
            user_metadata: Metadata::from([("k".into(), "v\"'".into())]),
            display_name: Some("n".into()),
            ..session(id, owner)
        }
    }

    #[tokio::test]
    async fn a_row_reads_back_as_written() {
        let store = empty_store().await;
        let mut session = row("s", "o", 1);
        store.insert_session(&session).await.unwrap();
        assert_eq!(store.session(&session.id).await.unwrap().unwrap(), session);
        assert_eq!(store.session(&SessionId("other".into())).await.unwrap(), None);
        let again = store.insert_session(&session).await.unwrap_err();
        assert_eq!((again.category, again.message.as_str()), (Category::User, "session s exists already"));

        store.heartbeat_session(&session.id, at(9)).await.unwrap();
        store.set_session_project(&session.id, "p").await.unwrap();
        session.last_heartbeat_at = at(9);
        session.project_id = Some("p".into());
        assert_eq!(store.session(&session.id).await.unwrap().unwrap(), session);
        let unknown = store.heartbeat_session(&SessionId("other".into()), at(9)).await.unwrap_err();
        assert_eq!(unknown.category, Category::NotFound);
    }

    #[tokio::test]
    async fn the_first_reason_stays() {
        let store = empty_store().await;
        let session = row("s", "o", 1);
        store.insert_session(&session).await.unwrap();
        let first = Finish { at: at(5), reason: "success".into(), detail: None };
        store.finish_session(&session.id, &first).await.unwrap();
        let later = Finish { at: at(6), reason: "errored".into(), detail: Some("late".into()) };
        store.finish_session(&session.id, &later).await.unwrap();
        assert_eq!(store.session(&session.id).await.unwrap().unwrap().finished, Some(first));
    }

    #[tokio::test]
    async fn lists_are_per_owner_newest_first() {
        let store = empty_store().await;
        for (id, owner, created) in [("s1", "o", 1), ("s3", "o", 3), ("s2", "o", 2), ("x", "other", 4)] {
            store.insert_session(&row(id, owner, created)).await.unwrap();
        }
        let owner = OwnerId("o".into());
        let ids = |found: Vec<SessionId>| found.into_iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(ids(store.sessions(&owner, None, 10, 0).await.unwrap()), ["s3", "s2", "s1"]);
        assert_eq!(ids(store.sessions(&owner, None, 1, 1).await.unwrap()), ["s2"]);
        assert_eq!(ids(store.sessions(&owner, None, u64::MAX, 3).await.unwrap()), [""; 0]);
        store.set_session_project(&SessionId("s1".into()), "p").await.unwrap();
        assert_eq!(ids(store.sessions(&owner, Some("p"), 10, 0).await.unwrap()), ["s1"]);
    }

    #[tokio::test]
    async fn sessions_follow_one_another_also_when_they_are_as_old() {
        let store = crate::store::testing::empty_store().await;
        for (id, created) in [("a", 1), ("b", 2), ("c", 2), ("d", 2)] {
            store.insert_session(&row(id, "o", created)).await.unwrap();
        }
        let (owner, mut last, mut seen) = (OwnerId("o".into()), None, Vec::new());
        while let Some(next) = store.sessions_after(&owner, last.as_ref(), 1).await.unwrap().pop() {
            seen.push(next.id.0.clone());
            last = Some((next.created_at, next.id));
        }
        assert_eq!(seen, ["d", "c", "b", "a"]);
        assert_eq!(store.session_checkpoints(&SessionId("a".into())).await.unwrap(), (0, 0));
    }

    #[tokio::test]
    async fn silent_sessions_are_the_open_ones_without_a_late_heartbeat() {
        let store = empty_store().await;
        for (id, created) in [("s3", 3), ("s1", 1), ("s2", 2), ("live", 0), ("finished", 0)] {
            store.insert_session(&row(id, "o", created)).await.unwrap();
        }
        store.heartbeat_session(&SessionId("live".into()), at(9)).await.unwrap();
        let finish = Finish { at: at(4), reason: "success".into(), detail: None };
        store.finish_session(&SessionId("finished".into()), &finish).await.unwrap();
        let silent = store.silent_sessions(at(3), 10).await.unwrap();
        assert_eq!(silent.iter().map(|s| s.id.0.as_str()).collect::<Vec<_>>(), ["s1", "s2"]);
        assert_eq!(store.silent_sessions(at(3), 1).await.unwrap(), silent[..1]);
    }
}
