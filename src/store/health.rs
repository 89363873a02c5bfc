//! What can be said about a database from outside: whether it opens, which release's tables it has, whether it is whole.
//! Nothing is changed in it, and no table is made.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AnyConnection, Connection};

use super::backup::faults;
use super::columns::Columns;
use super::open;
use crate::error::{Error, Result};

/// What was found in a database that opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `SQLite 3.46.0`, `PostgreSQL 15.3 …`.
    pub version: String,
    /// The newest migration that was applied; `None` = none, the first start makes the tables.
    pub migration: Option<i64>,
    /// The newest one that this release knows.
    pub known: i64,
    /// What is wrong with its pages; empty = nothing. Always empty for Postgres.
    pub faults: String,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

/// Looks at the database of a URL that exists.
///
/// # Errors
/// It cannot be reached, opened or read.
pub async fn examine(url: &str, patience: Duration) -> Result<Health> {
    sqlx::any::install_default_drivers();
    let embedded = url.starts_with("sqlite:");
    let mut connection = match embedded {
        true if url.contains('?') => AnyConnection::connect(url).await?,
        true => AnyConnection::connect(&format!("{url}?mode=rw")).await?,
        false => {
            open::reach(url, patience).await?;
            AnyConnection::connect(url).await?
        }
    };
    let (version, now) = match embedded {
        true => {
            ("SELECT 'SQLite ' || sqlite_version() AS version", "SELECT CAST(strftime('%s', 'now') AS BIGINT) AS now")
        }
        false => ("SELECT version() AS version", "SELECT CAST(EXTRACT(EPOCH FROM now()) AS BIGINT) AS now"),
    };
    let version = sqlx::query(version).fetch_one(&mut connection).await?.text("version")?;
    let now = sqlx::query(now).fetch_one(&mut connection).await?.number("now")?;
    let now = DateTime::from_timestamp(now.cast_signed(), 0);
    let now = now.ok_or_else(|| Error::server("the database's clock says no time at all"))?;
    let tables = match embedded {
        true => "SELECT COUNT(*) AS n FROM sqlite_master WHERE name = '_sqlx_migrations'",
        false => "SELECT COUNT(*) AS n FROM pg_tables WHERE tablename = '_sqlx_migrations'",
    };
    let migration = match sqlx::query(tables).fetch_one(&mut connection).await?.number("n")? {
        0 => None,
        _ => {
            let sql = "SELECT COALESCE(MAX(version), 0) AS n FROM _sqlx_migrations";
            Some(sqlx::query(sql).fetch_one(&mut connection).await?.number("n")?.cast_signed())
        }
    };
    let faults = if embedded { faults(&mut connection).await? } else { String::new() };
    connection.close().await?;
    Ok(Health { version, migration, known: open::newest_migration(), faults, now })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::store::Store;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_database_is_looked_at_without_being_changed() {
        let dir = tempfile::tempdir().unwrap();
        let place = config::store::Store::in_dir(dir.path());
        assert!(examine(&place.url, PATIENCE).await.is_err(), "nothing is made");
        assert!(!place.database_file().exists());
        Store::open(&place.url).await.unwrap().close().await;
        let found = examine(&place.url, PATIENCE).await.unwrap();
        assert!(found.version.starts_with("SQLite 3."), "{}", found.version);
        assert_eq!((found.migration, found.faults.as_str()), (Some(found.known), ""));
        assert!((Utc::now() - found.now).num_seconds().abs() < 60);
        // A page in the middle is overwritten.
        let mut bytes = std::fs::read(place.database_file()).unwrap();
        let middle = bytes.len() / 8192 * 4096;
        bytes[middle..middle + 4096].fill(0x5a);
        std::fs::write(place.database_file(), bytes).unwrap();
        let damaged = examine(&place.url, PATIENCE).await;
        assert!(damaged.is_err() || !damaged.unwrap().faults.is_empty());
    }
}
