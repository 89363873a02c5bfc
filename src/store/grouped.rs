//! What a power cut may cost of SQLite: its log is synced in groups, beside the commits, which would be slow one by one.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::SystemTime;

use crate::error::{Error, Result};

/// The write-ahead log of an SQLite file.
pub struct CommitLog {
    path: PathBuf,
    /// Length and time when it was synced last.
    synced: Mutex<Option<(u64, SystemTime)>>,
}

impl CommitLog {
    /// Of the database of this URL; `None` where nothing of ours has to be synced: Postgres syncs every commit itself.
    pub fn of(url: &str) -> Option<Self> {
        let file = url.strip_prefix("sqlite:")?.split('?').next().filter(|file| *file != ":memory:")?;
        let file = percent_decoded(file);
        Some(Self { path: format!("{file}-wal").into(), synced: Mutex::default() })
    }

    /// Makes everything that was committed survive a power cut. Cheap when nothing was since the last time.
    pub fn sync(&self) -> Result<()> {
        let failed = |e: std::io::Error| Error::server(format!("{} cannot be synced: {e}", self.path.display()));
        let file = match File::open(&self.path) {
            // It was folded into the database, and synced with it.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        let about = file.metadata().map_err(failed)?;
        let now = (about.len(), about.modified().map_err(failed)?);
        let mut synced = self.synced.lock().expect("no code panics while it holds this");
        if *synced != Some(now) {
            file.sync_data().map_err(failed)?;
            *synced = Some(now);
        }
        Ok(())
    }
}

/// As SQLite's URLs spell file names.
fn percent_decoded(file: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), file.as_bytes());
    while let [first, others @ ..] = rest {
        let hex = |at: usize| others.get(at).and_then(|b| (*b as char).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &others[2..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::store::Store;

    #[tokio::test]
    async fn the_log_of_a_database_with_any_name_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let config = config::store::Store::in_dir(&dir.path().join("a dir #1?%41"));
        let store = Store::open(&config.url).await.unwrap();
        store.insert_telemetry(&crate::ids::OwnerId("a".into()), "s", "{}").await.unwrap();
        let log = CommitLog::of(&config.url).unwrap();
        assert!(log.path.is_file(), "{}", log.path.display());
        log.sync().unwrap();
        assert!(log.synced.lock().unwrap().is_some());
        assert!(CommitLog::of("sqlite::memory:").is_none() && CommitLog::of("postgres://x/y").is_none());
        std::fs::remove_file(&log.path).unwrap();
        log.sync().unwrap();
    }
}
