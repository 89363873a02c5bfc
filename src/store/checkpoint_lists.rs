//! Lists of checkpoints over all runs, newest first (protocol §6.2).

use chrono::{DateTime, Utc};
use sqlx::any::AnyRow;

use super::checkpoints::{CheckpointRow, read};
use super::columns::{Columns, int, micros};
use super::{Page, Store};
use crate::error::Result;
use crate::ids::{CheckpointPath, OwnerId};

/// Whose checkpoints a list holds.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    pub owner: &'a OwnerId,
    /// Also the published ones of others.
    pub published: bool,
    pub project_id: Option<&'a str>,
}

/// Live rows of `$1`, with `$2` = 1 also what others published, `$3` NULL or the project of their run's session.
const LISTED: &str = "FROM checkpoints LEFT JOIN training_runs ON training_runs.id = checkpoints.run_id \
    LEFT JOIN sessions ON sessions.id = training_runs.session_id \
    WHERE (checkpoints.owner = $1 OR checkpoints.public + $2 = 2) AND ($3 IS NULL OR sessions.project_id = $3) \
    AND (checkpoints.expires_at IS NULL OR checkpoints.expires_at > $4)";

const PATH: &str = "'tinker://' || checkpoints.run_id || '/' || checkpoints.kind || '/' || checkpoints.name";

impl Store {
    pub async fn checkpoints(&self, of: Listed<'_>, limit: u64, offset: u64) -> Result<Page<CheckpointRow>> {
        let sql =
            format!("SELECT checkpoints.* {LISTED} ORDER BY checkpoints.created_at DESC, {PATH} LIMIT $5 OFFSET $6");
        let rows = bound(&sql, of).bind(int(limit)).bind(int(offset)).fetch_all(&self.pool).await?;
        let sql = format!("SELECT COUNT(*) AS total {LISTED}");
        let count = bound(&sql, of).fetch_one(&self.pool).await?;
        Ok(Page { rows: rows.iter().map(read).collect::<Result<_>>()?, total: count.number("total")? })
    }

    /// The rows that come after this place of the list, each with its project, "" for none.
    pub async fn checkpoints_after(
        &self,
        of: Listed<'_>,
        last: Option<&(DateTime<Utc>, CheckpointPath)>,
        limit: u64,
    ) -> Result<Vec<(CheckpointRow, String)>> {
        let sql = format!(
            "SELECT checkpoints.*, COALESCE(sessions.project_id, '') AS project {LISTED} \
             AND (checkpoints.created_at < $5 OR (checkpoints.created_at = $5 AND {PATH} > $6)) \
             ORDER BY checkpoints.created_at DESC, {PATH} LIMIT $7"
        );
        let rows = bound(&sql, of)
            .bind(last.map_or(i64::MAX, |(at, _)| micros(*at)))
            .bind(last.map_or_else(String::new, |(_, path)| path.to_string()))
            .bind(int(limit))
            .fetch_all(&self.pool)
            .await?;
        let with_project = |row: &AnyRow| Ok((read(row)?, row.text("project")?));
        rows.iter().map(with_project).collect()
    }
}

fn bound<'q>(sql: &'q str, of: Listed<'q>) -> super::columns::Query<'q> {
    sqlx::query(sql)
        .bind(&of.owner.0)
        .bind(i64::from(of.published))
        .bind(of.project_id.map(str::to_owned))
        .bind(micros(Utc::now()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CheckpointKind;
    use crate::store::sessions::SessionRow;
    use crate::store::testing::{at, checkpoint, empty_store, run, session};

    fn row(owner: &str, path: &str, age_micros: i64) -> CheckpointRow {
        CheckpointRow { created_at: at(-age_micros), ..checkpoint(path, owner) }
    }

    fn mine(owner: &OwnerId) -> Listed<'_> {
        Listed { owner, published: false, project_id: None }
    }

    #[tokio::test]
    async fn lists_are_newest_first_with_the_total() {
        let store = empty_store().await;
        let rows = [
            row("o", "tinker://r/weights/new", 1),
            row("o", "tinker://r/sampler_weights/mid", 2),
            row("o", "tinker://r/weights/old", 3),
            row("o", "tinker://q/weights/oldest", 4),
        ];
        for i in [2, 0, 3, 1] {
            store.put_checkpoint(&rows[i]).await.unwrap();
        }
        store.put_checkpoint(&row("other", "tinker://x/weights/a", 0)).await.unwrap();
        assert_eq!(store.run_checkpoints(&rows[0].path.run).await.unwrap(), rows[..3]);
        let page = store.checkpoints(mine(&rows[0].owner), 2, 1).await.unwrap();
        assert_eq!((page.rows.as_slice(), page.total), (&rows[1..3], 4));
        let last = |kind| store.last_checkpoint(&rows[0].path.run, kind, false);
        assert_eq!(last(CheckpointKind::Training).await.unwrap().as_ref(), Some(&rows[0]));
        assert_eq!(last(CheckpointKind::External).await.unwrap(), None);
    }

    #[tokio::test]
    async fn every_row_follows_once_also_among_equally_old_ones() {
        let store = empty_store().await;
        for (path, age) in [("b", 2), ("a", 2), ("c", 2), ("d", 1)] {
            store.put_checkpoint(&row("o", &format!("tinker://r/weights/{path}"), age)).await.unwrap();
        }
        let (owner, mut last, mut seen) = (OwnerId("o".into()), None, Vec::new());
        while let Some((next, project)) = store.checkpoints_after(mine(&owner), last.as_ref(), 1).await.unwrap().pop() {
            assert_eq!(project, "");
            seen.push(next.path.name.clone());
            last = Some((next.created_at, next.path));
        }
        assert_eq!(seen, ["d", "a", "b", "c"]);
    }

    #[tokio::test]
    async fn what_others_published_is_listed_when_asked_for_and_a_project_is_its_sessions() {
        let store = empty_store().await;
        let (me, other) = (OwnerId("o".into()), OwnerId("other".into()));
        let own = row("o", "tinker://s:train:0/weights/own", 1);
        let public = CheckpointRow { public: true, ..row("other", "tinker://t:train:0/weights/public", 2) };
        for checkpoint in [&own, &public, &row("other", "tinker://t:train:0/weights/private", 3)] {
            store.put_checkpoint(checkpoint).await.unwrap();
        }
        let page = store.checkpoints(Listed { published: true, ..mine(&me) }, 10, 0).await.unwrap();
        assert_eq!((page.rows, page.total), (vec![own.clone(), public.clone()], 2));
        let last = |published| store.last_checkpoint(&public.path.run, CheckpointKind::Training, published);
        assert_eq!(last(true).await.unwrap().as_ref(), Some(&public));
        let session = SessionRow { project_id: Some("p".into()), ..session("s", "o") };
        store.insert_session(&session).await.unwrap();
        store.insert_run(&run(&own.path.run.0, "o")).await.unwrap();
        let of_project = |project_id| Listed { project_id: Some(project_id), ..mine(&me) };
        assert_eq!(store.checkpoints(of_project("p"), 10, 0).await.unwrap().rows, [own]);
        assert_eq!(store.checkpoints(of_project("q"), 10, 0).await.unwrap().total, 0);
        assert_eq!(store.checkpoints_after(of_project("p"), None, 9).await.unwrap()[0].1, "p");
        assert_eq!(store.checkpoints(mine(&other), 10, 0).await.unwrap().total, 2);
    }
}
