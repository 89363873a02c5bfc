//! Connects to the database of a URL and brings its tables up to date.

use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AnyConnection, AnyPool, ConnectOptions, Connection};
use tokio::time::Instant;

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

/// How long a database may take to come up, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(10);
const BETWEEN: Duration = Duration::from_millis(250);

async fn open_postgres(url: &str) -> Result<AnyPool> {
    reach(url, PATIENCE).await?;
    Ok(AnyPoolOptions::new().max_connections(16).acquire_timeout(PATIENCE).connect(url).await?)
}

/// One connection, as a pool's error hides why it got none. A database that is just starting is waited for, not in
/// silence.
pub(super) async fn reach(url: &str, patience: Duration) -> Result<()> {
    let options = PgConnectOptions::from_str(url)?;
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    let deadline = Instant::now() + patience;
    let mut told = false;
    loop {
        let answer = tokio::time::timeout_at(deadline, options.connect()).await;
        let Ok(connected) = answer else {
            return Err(Error::server(format!("cannot connect to {place}: no answer in {} s", patience.as_secs())));
        };
        let e = match connected {
            Ok(connection) => return Ok(connection.close().await?),
            Err(e) => e,
        };
        let why = format!("cannot connect to {place}: {}", reason(&e));
        if !is_starting(&e) || Instant::now() + BETWEEN >= deadline {
            return Err(Error::server(why));
        }
        if !told {
            tracing::warn!("{why}; trying again for {} s", patience.as_secs());
            told = true;
        }
        tokio::time::sleep(BETWEEN).await;
    }
}

/// What a database answers while it comes up, or while it gets rid of connections that were not closed.
fn is_starting(e: &sqlx::Error) -> bool {
    match e {
        sqlx::Error::Io(e) => e.kind() == ErrorKind::ConnectionRefused,
        // cannot_connect_now, too_many_connections
        sqlx::Error::Database(e) => matches!(e.code().as_deref(), Some("57P03" | "53300")),
        _ => false,
    }
}

fn reason(e: &sqlx::Error) -> String {
    match e {
        sqlx::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => e.kind().to_string(),
        sqlx::Error::Io(e) => e.to_string(),
        sqlx::Error::Database(e) => e.message().to_owned(),
        e => e.to_string(),
    }
}

/// The number of the newest migration of this release.
pub(super) fn newest_migration() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or_default()
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

    #[tokio::test]
    async fn a_database_that_is_not_there_is_named_with_the_cause() {
        // Free again, so that whoever connects is refused.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("postgres://u:s3cret@127.0.0.1:{port}/db");
        let message = reach(&url, Duration::from_millis(300)).await.unwrap_err().message;
        assert_eq!(message, format!("cannot connect to 127.0.0.1:{port}: connection refused"));
        // Listening, but silent.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = silent.local_addr().unwrap();
        let message =
            reach(&format!("postgres://u:s3cret@{place}/db"), Duration::from_secs(1)).await.unwrap_err().message;
        assert_eq!(message, format!("cannot connect to {place}: no answer in 1 s"));
    }

    #[test]
    fn paths_are_decoded() {
        assert_eq!(percent_decoded("/a%20b/%C3%A9%25").unwrap(), "/a b/é%");
        for wrong in ["%", "a%2", "%zz", "%é1", "%FF"] {
            assert!(percent_decoded(wrong).is_err(), "{wrong}");
        }
    }
}
