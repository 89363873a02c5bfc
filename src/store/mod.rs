//! All SQL of the server: one set of queries for SQLite and Postgres, a file per table.

pub mod audit;
pub mod backup;
pub mod checkpoint_lists;
pub mod checkpoints;
mod columns;
pub mod copies;
pub mod custom_losses;
mod grouped;
pub mod health;
pub mod held;
mod in_use;
pub mod keys;
pub mod moved;
mod open;
pub mod runs;
pub mod samplers;
pub mod sessions;
pub mod storage;
pub mod telemetry;
#[cfg(test)]
pub mod testing;
pub mod usage;

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::AnyPool;

use crate::config::store::redacted;
use crate::error::{Error, Result};
use grouped::CommitLog;

/// What users attach to sessions, runs and checkpoints.
pub type Metadata = BTreeMap<String, String>;

/// Some rows of a list and how many the whole list has.
#[derive(Clone, Debug)]
pub struct Page<T> {
    pub rows: Vec<T>,
    pub total: u64,
}

/// The database. Cheap to clone; all clones share one pool.
///
/// Methods answer for any owner: who may see a row is decided by its `owner` (and `public`) field.
/// Errors are the server's unless a method says otherwise.
#[derive(Clone)]
pub struct Store {
    pool: AnyPool,
    noted: Arc<audit::Noted>,
    commits: Option<Arc<CommitLog>>,
}

impl Store {
    /// Connects to `sqlite:FILE` (created when missing, its directory too), `sqlite::memory:` or `postgres://…`
    /// and brings the tables up to date.
    pub async fn open(url: &str) -> Result<Self> {
        let pool = open::pool(url).await.map_err(|e| e.context(format_args!("database {}", redacted(url))))?;
        Ok(Self { pool, noted: Arc::default(), commits: CommitLog::of(url).map(Arc::new) })
    }

    /// Makes everything that was committed survive a power cut.
    pub async fn sync(&self) -> Result<()> {
        let Some(commits) = self.commits.clone() else { return Ok(()) };
        let synced = tokio::task::spawn_blocking(move || commits.sync()).await;
        synced.map_err(|e| Error::server(format!("the sync broke off: {e}")))?
    }

    /// Writes the events that were noted, waits for queries in flight and closes every connection; SQLite then folds
    /// its log into the file.
    pub async fn close(&self) {
        if let Err(e) = self.write_noted().await {
            tracing::warn!(error = %e, "audit log not written");
        }
        self.pool.close().await;
    }
}

impl From<sqlx::Error> for Error {
    fn from(e: sqlx::Error) -> Self {
        Self::server(format!("database: {e}"))
    }
}

/// A second row under the same id is the user's error: `what` is taken.
fn taken(what: impl std::fmt::Display) -> impl FnOnce(sqlx::Error) -> Error {
    move |e| match &e {
        sqlx::Error::Database(d) if d.is_unique_violation() => Error::user(format!("{what} exists already")),
        _ => e.into(),
    }
}

/// An update that met no row.
fn found(rows: u64, what: impl std::fmt::Display) -> Result<()> {
    match rows {
        0 => Err(Error::not_found(format!("{what} does not exist"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[tokio::test]
    async fn a_file_is_created_kept_and_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let config = config::store::Store::in_dir(&dir.path().join("new dir #1?%41"));
        let store = Store::open(&config.url).await.unwrap();
        store.insert_telemetry(&crate::ids::OwnerId("a".into()), "s", "{}").await.unwrap();
        store.close().await;
        assert!(config.data_dir.join("tinderbox.db").is_file());
        let store = Store::open(&config.url).await.unwrap();
        let n: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM telemetry").fetch_one(&store.pool).await.unwrap();
        assert_eq!(n, 1);
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&store.pool).await.unwrap();
        assert_eq!(mode, "wal");
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&store.pool).await.unwrap();
        assert_eq!(synchronous, 1);
    }

    #[tokio::test]
    async fn a_database_of_a_newer_release_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let url = config::store::Store::in_dir(dir.path()).url;
        let store = Store::open(&url).await.unwrap();
        let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                     VALUES (9999, 'later', 1, x'00', 0)";
        sqlx::query(newer).execute(&store.pool).await.unwrap();
        store.close().await;
        let message = Store::open(&url).await.err().unwrap().message;
        assert!(message.contains("newer release") && message.contains("tinderbox.db"), "{message}");
    }

    #[tokio::test]
    async fn a_database_that_cannot_be_opened_is_named_without_its_password() {
        let message = Store::open("postgres://u:s3cret@127.0.0.1/db?sslmode=perhaps").await.err().unwrap().message;
        assert!(message.contains("postgres://u@127.0.0.1/db") && !message.contains("s3cret"), "{message}");
    }
}
