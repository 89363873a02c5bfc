//! One server to a data directory: a second would sweep away what the first is using.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use super::data_dir::refused;
use crate::error::{Error, Result};

const FILE: &str = "lock";
/// Somebody who only looks holds the lock for a moment: so often it is tried again, and after so long.
const TRIES: u32 = 4;
const BETWEEN: Duration = Duration::from_millis(50);

/// Held for as long as the value lives; the system lets go of it when the process ends, however it ends.
pub struct DataDirLock(#[expect(dead_code, reason = "the lock lives in the open file")] File);

/// Takes the lock of a directory that is there.
///
/// # Errors
/// User errors: it cannot be written, or another server has it (which process, where that is known).
pub fn hold(data_dir: &Path) -> Result<DataDirLock> {
    let path = data_dir.join(FILE);
    let failed = |e: &std::io::Error| refused(&path, e);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&path).map_err(|e| failed(&e))?;
    if !taken(&mut file, TRIES).map_err(|e| failed(&e))? {
        return Err(Error::user(format!(
            "data directory {}: in use by another tinderbox ({}); give another --data-dir, or stop that one",
            data_dir.display(),
            written(&mut file)
        )));
    }
    let noted = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
    noted.map_err(|e| failed(&e))?;
    Ok(DataDirLock(file))
}

/// Who serves from this directory now, as "process N"; `None` = nobody.
pub fn holder(data_dir: &Path) -> std::io::Result<Option<String>> {
    let mut file = match File::open(data_dir.join(FILE)) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(written(&mut file))),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

fn taken(file: &mut File, tries: u32) -> std::io::Result<bool> {
    for left in (0..tries).rev() {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if left > 0 => std::thread::sleep(BETWEEN),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Ok(false)
}

fn written(file: &mut File) -> String {
    let mut process = String::new();
    match file.read_to_string(&mut process) {
        Ok(_) if !process.trim().is_empty() => format!("process {}", process.trim()),
        _ => "a process that is not known".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_server_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(holder(dir.path()).unwrap(), None);
        let first = hold(dir.path()).unwrap();
        let process = format!("process {}", std::process::id());
        assert!(hold(dir.path()).err().unwrap().message.contains(&process));
        assert_eq!(holder(dir.path()).unwrap(), Some(process));
        drop(first);
        assert_eq!(holder(dir.path()).unwrap(), None);
        hold(dir.path()).unwrap();
    }
}
