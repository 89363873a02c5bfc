//! Files of a directory that is in use, linked or copied into another one: what is complete there stays complete here.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::progress::Progress;

/// How a file that never changes gets into the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// As a further name of the same file: at once, and without room.
    Link,
    Copy,
}

/// A directory in which files come and go is read again when one went before it was taken, at most so often.
const READS: u32 = 20;

/// Takes all files of a directory, and those below it, that were complete when it was looked at, and whatever took their
/// place meanwhile; unfinished ones are left out. → bytes.
pub fn tree(from: &Path, to: &Path, how: How, progress: &mut Progress) -> io::Result<u64> {
    make_dir(to)?;
    let (mut seen, mut sum) = (BTreeSet::<OsString>::new(), 0);
    for _ in 0..READS {
        let mut vanished = false;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name();
            if seen.contains(&name) || is_unfinished(&name) {
                continue;
            }
            let (source, target) = (entry.path(), to.join(&name));
            let taken = match entry.file_type() {
                Ok(kind) if kind.is_dir() => tree(&source, &target, how, progress),
                Ok(kind) if kind.is_file() => file(&source, &target, how).inspect(|bytes| progress.took(*bytes)),
                Ok(_) => Ok(0),
                Err(e) => Err(e),
            };
            match taken {
                Ok(bytes) => {
                    seen.insert(name);
                    sum += bytes;
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    vanished = true;
                    // What was taken of a directory that went is no whole one.
                    remove(&target)?;
                }
                Err(e) => return Err(e),
            }
        }
        if !vanished {
            sync_dir(to)?;
            return Ok(sum);
        }
    }
    Err(io::Error::other(format!("{} changes faster than it can be read", from.display())))
}

/// → its size.
pub fn file(from: &Path, to: &Path, how: How) -> io::Result<u64> {
    match how {
        How::Link => fs::hard_link(from, to).and_then(|()| Ok(fs::metadata(to)?.len())),
        How::Copy => prefix(from, to, u64::MAX),
    }
}

/// Copies a file's first `length` bytes, or all of a shorter one, and syncs the copy.
pub fn prefix(from: &Path, to: &Path, length: u64) -> io::Result<u64> {
    let mut source = File::open(from)?;
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut target = options.open(to)?;
    // Of a whole file the system copies by itself; it may even share the blocks.
    let bytes = match length {
        u64::MAX => io::copy(&mut source, &mut target)?,
        _ => io::copy(&mut source.take(length), &mut target)?,
    };
    target.sync_all()?;
    Ok(bytes)
}

/// Also when it is not there.
pub fn remove(path: &Path) -> io::Result<()> {
    let gone = match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    gone.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

/// Closed to others; one that is there stays.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Names under which things are written before they are complete, or removed.
pub fn is_unfinished(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with('~') || name.ends_with(".tmp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_taken_without_what_is_unfinished() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        for (name, text) in [("a/b/one", "1"), ("two", "22"), ("a/~tmp-x/three", "3"), ("a/four.tmp", "4")] {
            let path = from.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for how in [How::Link, How::Copy] {
            let to = dir.path().join(format!("{how:?}"));
            assert_eq!(tree(&from, &to, how, &mut Progress::new(&mut Vec::new())).unwrap(), 3);
            assert_eq!(fs::read_to_string(to.join("a/b/one")).unwrap(), "1");
            assert!(!to.join("a/~tmp-x").exists() && !to.join("a/four.tmp").exists());
        }
        // A link is the file itself, a copy another one.
        fs::write(from.join("two"), "changed").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("Link/two")).unwrap(), "changed");
        assert_eq!(fs::read_to_string(dir.path().join("Copy/two")).unwrap(), "22");
    }

    #[test]
    fn a_file_is_copied_up_to_a_length() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("log");
        fs::write(&from, "0123456789").unwrap();
        for (length, copied) in [(4, "0123"), (99, "0123456789")] {
            let to = dir.path().join(length.to_string());
            assert_eq!(prefix(&from, &to, length).unwrap(), copied.len() as u64);
            assert_eq!(fs::read_to_string(to).unwrap(), copied);
        }
    }

    #[test]
    fn files_that_replace_each_other_are_always_there() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("0"), "").unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // As a run's states: the new one is there before the old one goes.
            scope.spawn(|| {
                for n in 1.. {
                    fs::write(from.join(n.to_string()), "").unwrap();
                    fs::remove_file(from.join((n - 1).to_string())).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(300));
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            });
            for i in 0..100 {
                let to = dir.path().join(format!("to{i}"));
                tree(&from, &to, How::Link, &mut Progress::new(&mut Vec::new())).unwrap();
                assert!(fs::read_dir(&to).unwrap().next().is_some(), "{i}");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
