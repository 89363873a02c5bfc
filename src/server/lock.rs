//! One server to a data directory: a second would sweep away what the first is using.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use crate::error::{Error, Result};

use super::private;

/// Held for as long as the value lives; the system lets go of it when the process ends, however it ends.
pub struct DataDirLock(#[expect(dead_code, reason = "the lock lives in the open file")] File);

/// Makes the directory if need be and takes its lock.
///
/// # Errors
/// User errors: it cannot be made or written, or another server has it (which process, where that is known).
pub fn hold(data_dir: &Path) -> Result<DataDirLock> {
    let failed = |e: &dyn std::fmt::Display| Error::user(format!("data directory {}: {e}", data_dir.display()));
    private::make_dir(data_dir)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(data_dir.join("lock")).map_err(|e| failed(&e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            let _ = file.read_to_string(&mut process);
            return Err(failed(&format!(
                "in use by another tinderbox (process {}); give another --data-dir, or stop that one",
                process.trim()
            )));
        }
        Err(TryLockError::Error(e)) => return Err(failed(&e)),
    }
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
    written.map_err(|e| failed(&e))?;
    Ok(DataDirLock(file))
}

#[cfg(test)]
mod tests {
    use super::hold;

    #[test]
    fn a_directory_has_one_server_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("new");
        let first = hold(&data).unwrap();
        let second = hold(&data).err().unwrap();
        assert!(second.message.contains(&std::process::id().to_string()), "{second}");
        drop(first);
        hold(&data).unwrap();
    }
}
