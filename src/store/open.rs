//! Connects to the database of a URL and brings its tables up to date.

use std::path::Path;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{AnyConnection, AnyPool};

use crate::error::{Error, Result};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// `sqlite:FILE`, percent-encoded, `sqlite::memory:` or `postgres://…`. Errors do not repeat the URL.
pub async fn pool(url: &str) -> Result<AnyPool> {
    sqlx::any::install_default_drivers();
    let pool = match url.strip_prefix("sqlite:") {
        Some(file) => open_sqlite(file).await?,
        None => open_postgres(url).await?,
    };
    migrate(&pool).await?;
    Ok(pool)
}

/// One connection: SQLite has one writer anyway, and so no query ever meets a busy database of our own making.
async fn open_sqlite(file: &str) -> Result<AnyPool> {
    let (path, options) = file.split_once('?').unwrap_or((file, ""));
    let in_memory = path == ":memory:";
    if !in_memory {
        create_parent(path)?;
    }
    let options = match options {
        "" if in_memory => String::new(),
        "" => "?mode=rwc".into(),
        given => format!("?{given}"),
    };
    let url = format!("sqlite:{path}{options}");
    let pool = AnyPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(|connection, _| Box::pin(prepare_sqlite(connection)))
        .connect(&url);
    Ok(pool.await?)
}

/// With a write-ahead log, NORMAL survives a killed process; a power cut may cost the last transactions.
async fn prepare_sqlite(connection: &mut AnyConnection) -> std::result::Result<(), sqlx::Error> {
    for pragma in ["busy_timeout = 10000", "journal_mode = WAL", "synchronous = NORMAL"] {
        sqlx::query(&format!("PRAGMA {pragma}")).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn open_postgres(url: &str) -> Result<AnyPool> {
    let pool = AnyPoolOptions::new().max_connections(16).acquire_timeout(Duration::from_secs(10)).connect(url);
    Ok(pool.await?)
}

async fn migrate(pool: &AnyPool) -> Result<()> {
    MIGRATIONS.run(pool).await.map_err(|e| match e {
        MigrateError::VersionMissing(n) => {
            Error::user(format!("it was made by a newer release (its migration {n} is unknown here): upgrade this one"))
        }
        e => Error::server(format!("migration: {e}")),
    })
}

/// The directory that a percent-encoded SQLite path will be created in.
fn create_parent(encoded: &str) -> Result<()> {
    let path = percent_decoded(encoded)?;
    let Some(parent) = Path::new(path.trim_start_matches("//")).parent() else { return Ok(()) };
    std::fs::create_dir_all(parent).map_err(|e| Error::user(format!("{}: {e}", parent.display())))
}

fn percent_decoded(text: &str) -> Result<String> {
    let bad = || Error::user(format!("{text:?} is not a percent-encoded path"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let code = part.get(..2).ok_or_else(bad)?;
        bytes.push(u8::from_str_radix(code, 16).map_err(|_| bad())?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded() {
        assert_eq!(percent_decoded("/a%20b/%C3%A9%25").unwrap(), "/a b/é%");
        for wrong in ["%", "a%2", "%zz", "%é1", "%FF"] {
            assert!(percent_decoded(wrong).is_err(), "{wrong}");
        }
    }
}
