//! A copy of the embedded database while a server uses it, and what can be asked of and changed in that copy. Neither
//! touches the tables' version: the copy is of the release that wrote the original.

use std::path::{Path, PathBuf};

use sqlx::{AnyConnection, Connection};

use super::columns::{Columns, text};
use super::in_use::OF_OPEN_SESSIONS;
use crate::config::store::Store as Place;
use crate::error::{Error, Result};

/// A database file that was just made, and that nobody else uses.
pub struct Copy(AnyConnection);

impl Copy {
    /// Copies the SQLite database at `url` into the directory `to`, as it is at one moment. Writers go on meanwhile.
    ///
    /// # Errors
    /// It cannot be read, the copy cannot be written, or the copy is found damaged.
    pub async fn make(url: &str, to: &Path) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let mode = if url.contains('?') { "" } else { "?mode=rw" };
        let mut original = AnyConnection::connect(&format!("{url}{mode}")).await?;
        let copy = Place::in_dir(to);
        sqlx::query("PRAGMA busy_timeout = 10000").execute(&mut original).await?;
        sqlx::query("VACUUM INTO $1").bind(text(&copy.database_file())?).execute(&mut original).await?;
        original.close().await?;
        let mut copied = AnyConnection::connect(&format!("{}?mode=rw", copy.url)).await?;
        let found = faults(&mut copied).await?;
        match found.is_empty() {
            true => Ok(Self(copied)),
            false => Err(Error::server(format!("the copy of the database is damaged: {found}"))),
        }
    }

    /// The directories of its checkpoints, each with the checkpoint's path, and others that samplers still read.
    pub async fn checkpoint_dirs(&mut self) -> Result<Vec<(PathBuf, Option<String>)>> {
        let sql = format!(
            "SELECT dir, 'tinker://' || run_id || '/' || kind || '/' || name AS path FROM checkpoints UNION ALL \
             SELECT DISTINCT source_dir, '' FROM samplers WHERE source_dir IS NOT NULL AND source_dir <> '' \
             AND source_dir NOT IN (SELECT dir FROM checkpoints) AND {OF_OPEN_SESSIONS}"
        );
        let rows = sqlx::query(&sql).fetch_all(&mut self.0).await?;
        let read = |row: &sqlx::any::AnyRow| {
            Ok((PathBuf::from(row.text("dir")?), Some(row.text("path")?).filter(|path| !path.is_empty())))
        };
        rows.iter().map(read).collect()
    }

    /// Takes a checkpoint off the copy's list.
    pub async fn leave_out(&mut self, dir: &Path) -> Result<()> {
        sqlx::query("DELETE FROM checkpoints WHERE dir = $1").bind(text(dir)?).execute(&mut self.0).await?;
        Ok(())
    }

    /// Everything is in the one file afterwards.
    pub async fn close(self) -> Result<()> {
        Ok(self.0.close().await?)
    }
}

/// What SQLite finds wrong with the database; empty = nothing.
pub(super) async fn faults(connection: &mut AnyConnection) -> Result<String> {
    let rows = sqlx::query("PRAGMA integrity_check").fetch_all(connection).await?;
    let lines: Vec<String> = rows.iter().map(|row| row.text("integrity_check")).collect::<Result<_>>()?;
    Ok(if lines == ["ok"] { String::new() } else { lines.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::store::testing::checkpoint;

    #[tokio::test]
    async fn a_database_in_use_is_copied_and_the_copy_changed_alone() {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let url = Place::in_dir(dir.path()).url;
        let store = Store::open(&url).await.unwrap();
        let rows = ["a", "b"].map(|name| checkpoint(&format!("tinker://s:train:0/weights/{name}"), "o"));
        for row in &rows {
            store.put_checkpoint(row).await.unwrap();
        }
        let mut copy = Copy::make(&url, to.path()).await.unwrap();
        store.delete_checkpoint(&rows[0].path).await.unwrap();
        let dirs = copy.checkpoint_dirs().await.unwrap();
        assert_eq!(dirs, rows.clone().map(|row| (row.dir, Some(row.path.to_string()))));
        copy.leave_out(&rows[1].dir).await.unwrap();
        copy.close().await.unwrap();
        let restored = Store::open(&Place::in_dir(to.path()).url).await.unwrap();
        assert_eq!(restored.checkpoint_dirs().await.unwrap(), [rows[0].dir.clone()]);
        assert_eq!(store.checkpoint_dirs().await.unwrap(), [rows[1].dir.clone()]);
    }

    #[tokio::test]
    async fn a_database_that_is_not_there_is_not_made() {
        let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(Copy::make(&Place::in_dir(dir.path()).url, to.path()).await.is_err());
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }
}
