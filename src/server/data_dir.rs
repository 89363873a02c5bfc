//! The data directory as a whole: it is this process's alone, and of a format that this release knows.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::lock::{self, DataDirLock};
use super::private;
use crate::error::{Error, Result};

/// The format that this release writes.
pub const VERSION: u32 = 1;
/// Where a directory's format is noted. One without it was last written before formats had numbers: version 0.
const FILE: &str = "format.json";

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    pub version: u32,
    /// The release that wrote this version of the file.
    pub created_by: String,
    pub created_at: DateTime<Utc>,
}

/// Turns a directory of one format into one of the next. Done again from its beginning after a crash, so it must bear that.
struct Upgrade {
    to: u32,
    says: &'static str,
    run: fn(&Path) -> Result<()>,
}

/// In order: each starts where the one before it ends.
const UPGRADES: &[Upgrade] = &[Upgrade { to: 1, says: "the format is noted, nothing else changes", run: |_| Ok(()) }];

/// Makes the directory if need be, takes its lock, and brings it to this release's format.
///
/// # Errors
/// User errors that name the directory: it cannot be made or written, another server has it, or a newer release wrote it.
pub fn open(dir: &Path) -> Result<DataDirLock> {
    private::make_dir(dir)?;
    // Before the lock's file is written into it.
    let fresh = fs::read_dir(dir).map_err(|e| refused(dir, &e))?.next().is_none();
    let lock = lock::hold(dir)?;
    match format(dir)? {
        None if fresh => note(dir, VERSION)?,
        found => upgrade(dir, found.map_or(0, |f| f.version))?,
    }
    Ok(lock)
}

/// The format of a directory that is there; `None` = from before formats had numbers.
///
/// # Errors
/// User errors: the file cannot be read, or a newer release wrote it.
pub fn format(dir: &Path) -> Result<Option<Format>> {
    let path = dir.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(refused(&path, &e)),
    };
    // The version alone is certain to be there in what later releases write.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let damaged = |e| Error::user(format!("{} is damaged: {e}; it is to be as of a backup", path.display()));
    let Version { version } = serde_json::from_slice(&text).map_err(damaged)?;
    if version > VERSION {
        return Err(Error::user(format!(
            "data directory {}: written by a newer tinderbox (format {version}; this one knows up to {VERSION}): upgrade \
             this one, or give another --data-dir",
            dir.display()
        )));
    }
    serde_json::from_slice(&text).map(Some).map_err(damaged)
}

/// What the system said about a file or directory, in words that say what to do.
pub fn refused(path: &Path, e: &std::io::Error) -> Error {
    let path = path.display();
    Error::user(match e.kind() {
        ErrorKind::PermissionDenied => {
            format!(
                "data directory: {path} cannot be written or read by this user; change its owner, or give another --data-dir"
            )
        }
        ErrorKind::ReadOnlyFilesystem => {
            format!("data directory: {path} lies on a disk that is mounted read-only; give another --data-dir")
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            format!("data directory: {path} is no directory, or lies below a file; give another --data-dir")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!(
                "data directory: there is no room left for {path}; make room on its disk, or give another --data-dir"
            )
        }
        _ => format!("data directory: {path}: {e}"),
    })
}

fn upgrade(dir: &Path, from: u32) -> Result<()> {
    for step in UPGRADES.iter().filter(|step| step.to > from) {
        tracing::info!(dir = %dir.display(), "data directory: to format {}: {}", step.to, step.says);
        (step.run)(dir)?;
        note(dir, step.to)?;
    }
    Ok(())
}

/// Written whole or not at all.
fn note(dir: &Path, version: u32) -> Result<()> {
    let format = Format { version, created_by: env!("CARGO_PKG_VERSION").into(), created_at: Utc::now() };
    let (path, temporary) = (dir.join(FILE), dir.join(format!("{FILE}.tmp")));
    let mut text = serde_json::to_vec_pretty(&format).map_err(|e| Error::server(e.to_string()))?;
    text.push(b'\n');
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&temporary).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(dir)?.sync_all()
    });
    written.map_err(|e| refused(&path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_directory_has_todays_format_and_an_old_one_gets_it() {
        let parent = tempfile::tempdir().unwrap();
        let (new, old) = (parent.path().join("new"), parent.path().join("old"));
        fs::create_dir(&old).unwrap();
        fs::write(old.join("tinderbox.db"), "as it was").unwrap();
        for dir in [&new, &old] {
            let lock = open(dir).unwrap();
            let noted = format(dir).unwrap().unwrap();
            assert_eq!((noted.version, noted.created_by.as_str()), (VERSION, env!("CARGO_PKG_VERSION")));
            drop(lock);
            // The next start finds it as it is.
            drop(open(dir).unwrap());
            assert_eq!(format(dir).unwrap().unwrap(), noted);
        }
        assert_eq!(fs::read_to_string(old.join("tinderbox.db")).unwrap(), "as it was");
    }

    #[test]
    fn every_step_leads_to_the_next_format() {
        assert!(UPGRADES.iter().map(|step| step.to).eq(1..=VERSION));
    }

    #[test]
    fn a_newer_format_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let newer = r#"{"version": 7, "layout": "of another kind"}"#;
        fs::write(dir.path().join(FILE), newer).unwrap();
        let message = open(dir.path()).err().unwrap().message;
        assert!(message.contains("written by a newer tinderbox (format 7; this one knows up to 1)"), "{message}");
        assert!(message.contains(&*dir.path().display().to_string()), "{message}");
        assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), newer);
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(open(dir.path()).err().unwrap().message.contains("format.json is damaged"));
    }

    #[test]
    fn a_second_server_is_refused_with_the_first_ones_process() {
        let dir = tempfile::tempdir().unwrap();
        let _first = open(dir.path()).unwrap();
        let message = open(dir.path()).err().unwrap().message;
        let (place, process) = (dir.path().display().to_string(), format!("process {}", std::process::id()));
        assert!(message.contains(&place) && message.contains(&process), "{message}");
    }

    #[test]
    fn what_cannot_be_a_data_directory_is_named_with_the_cause() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for place in [file.clone(), file.join("below")] {
            let message = open(&place).err().unwrap().message;
            assert!(message.contains(&*place.display().to_string()), "{message}");
            assert!(message.contains("is no directory, or lies below a file"), "{message}");
        }
        for (kind, says) in [
            (ErrorKind::ReadOnlyFilesystem, "mounted read-only"),
            (ErrorKind::PermissionDenied, "by this user"),
            (ErrorKind::StorageFull, "no room left"),
        ] {
            let message = refused(&file, &kind.into()).message;
            assert!(message.contains(says) && message.contains("--data-dir"), "{message}");
        }
    }
}
