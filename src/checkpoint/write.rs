//! A directory that is complete or invisible: written beside its place, checked, synced, then renamed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::age::{self, Recipients};
use super::tensors::Reader;
use crate::error::{Error, Result};

/// Beginning of a temporary directory's name; `~` is in no checkpoint's name.
const TEMPORARY: &str = "~tmp-";

/// A temporary directory that becomes `dir` on `commit` and vanishes otherwise.
pub struct Staging {
    temporary: PathBuf,
    dir: PathBuf,
}

impl Staging {
    /// # Errors
    /// Server errors that name the path: `dir` is there already, or its parent cannot be written.
    pub fn new(dir: &Path) -> Result<Self> {
        if dir.exists() {
            return Err(Error::server(format!("{} exists already", dir.display())));
        }
        let parent = dir.parent().ok_or_else(|| Error::server(format!("{} has no parent", dir.display())))?;
        let temporary = parent.join(format!("{TEMPORARY}{}", uuid::Uuid::new_v4()));
        let create = || {
            create_dirs(parent)?;
            fs::create_dir(&temporary).map_err(|e| cannot("create", &temporary, &e))
        };
        // An empty parent may be removed in between.
        create().or_else(|_| create())?;
        Ok(Self { temporary, dir: dir.into() })
    }

    /// Where to write the files.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Checks what was written, encrypts it for the recipients if there are any, makes it durable and visible.
    /// Returns the size in bytes.
    pub fn commit(self, recipients: Option<&Recipients>) -> Result<u64> {
        for path in files(&self.temporary)? {
            if path.extension().is_some_and(|e| e == "safetensors") {
                Reader::open(&path)?;
            }
        }
        if let Some(recipients) = recipients {
            encrypt_all(&self.temporary, recipients)?;
        }
        let mut size = 0;
        for path in files(&self.temporary)? {
            let file = File::open(&path).map_err(|e| cannot("open", &path, &e))?;
            file.sync_all().map_err(|e| cannot("write", &path, &e))?;
            size += file.metadata()?.len();
        }
        sync_dir(&self.temporary)?;
        // Another writer may have been quicker; an empty directory would be replaced silently.
        if self.dir.exists() {
            return Err(Error::server(format!("{} exists already", self.dir.display())));
        }
        fs::rename(&self.temporary, &self.dir).map_err(|e| cannot("write", &self.dir, &e))?;
        sync_dir(self.dir.parent().expect("a staged directory has a parent"))?;
        Ok(size)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a commit there is nothing left under this name.
        if let Err(e) = fs::remove_dir_all(&self.temporary)
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.temporary.display(), "cannot remove a temporary directory: {e}");
        }
    }
}

/// Deletes the temporary directories that a killed process left anywhere under `root`. To be called before the first
/// write.
pub fn sweep(root: &Path) -> Result<()> {
    if !root.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(root).map_err(|e| cannot("read", root, &e))? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            tracing::info!(path = %path.display(), "removing an unfinished checkpoint");
            fs::remove_dir_all(&path).map_err(|e| cannot("remove", &path, &e))?;
        } else {
            sweep(&path)?;
        }
    }
    Ok(())
}

pub(super) fn json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|e| Error::server(format!("{}: {e}", path.display())))?;
    text.push(b'\n');
    fs::write(path, text).map_err(|e| cannot("write", path, &e))
}

pub(super) fn read_json(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).map_err(|e| cannot("read", path, &e))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::server(format!("{} is damaged: {e}", path.display())))
}

/// Replaces each file by its encrypted form.
fn encrypt_all(dir: &Path, recipients: &Recipients) -> Result<()> {
    for path in files(dir)? {
        let mut name = path.clone().into_os_string();
        name.push(".age");
        let target = PathBuf::from(name);
        let plain = File::open(&path).map_err(|e| cannot("open", &path, &e))?;
        let output = File::create(&target).map_err(|e| cannot("write", &target, &e))?;
        age::encrypt(recipients, io::BufReader::new(plain), output).map_err(|e| e.context(target.display()))?;
        fs::remove_file(&path).map_err(|e| cannot("remove", &path, &e))?;
    }
    Ok(())
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).and_then(|entries| entries.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>());
    entries.map_err(|e| cannot("read", dir, &e))
}

/// As `create_dir_all`, with each new entry made durable.
fn create_dirs(dir: &Path) -> Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        create_dirs(parent)?;
    }
    match fs::create_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(e) => Err(cannot("create", dir, &e)),
        Ok(()) => dir.parent().map_or(Ok(()), sync_dir),
    }
}

fn sync_dir(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| cannot("write", dir, &e))
}

fn cannot(what: &str, path: &Path, e: &io::Error) -> Error {
    Error::server(format!("cannot {what} {}: {e}", path.display()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of the files in a directory.
    pub fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_appears_whole_on_commit() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("run/a");
        let staging = Staging::new(&dir).unwrap();
        fs::write(staging.path().join("x"), "abc").unwrap();
        fs::write(staging.path().join("y"), "de").unwrap();
        assert!(!dir.exists());
        assert_eq!(staging.commit(None).unwrap(), 5);
        assert_eq!((names(&dir), names(dir.parent().unwrap())), (vec!["x".into(), "y".into()], vec!["a".into()]));
    }

    #[test]
    fn the_longest_checkpoint_name_fits() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("n".repeat(255));
        Staging::new(&dir).unwrap().commit(None).unwrap();
        assert!(dir.exists());
    }

    #[test]
    fn what_is_not_committed_leaves_no_trace() {
        let root = tempfile::tempdir().unwrap();
        let staging = Staging::new(&root.path().join("a")).unwrap();
        fs::write(staging.path().join("x"), "abc").unwrap();
        drop(staging);
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn a_damaged_file_is_not_committed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        let staging = Staging::new(&dir).unwrap();
        fs::write(staging.path().join("w.safetensors"), [9, 0, 0, 0, 0, 0, 0, 0, b'{']).unwrap();
        assert!(staging.commit(None).unwrap_err().message.contains("w.safetensors is damaged"));
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn the_slower_of_two_writers_fails() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        let (first, second) = (Staging::new(&dir).unwrap(), Staging::new(&dir).unwrap());
        first.commit(None).unwrap();
        assert!(second.commit(None).unwrap_err().message.contains("exists already"));
        assert_eq!(names(root.path()), ["a"]);
    }

    #[test]
    fn an_unwritable_place_is_named() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let e = Staging::new(&root.path().join("file/run/a")).err().expect("a file is no directory");
        assert_eq!(e.category, crate::error::Category::Server);
        assert!(e.message.contains("/file"), "{e}");
    }

    #[test]
    fn sweeping_removes_only_what_is_unfinished() {
        let root = tempfile::tempdir().unwrap();
        let staging = Staging::new(&root.path().join("run/weights/a")).unwrap();
        std::mem::forget(staging);
        Staging::new(&root.path().join("run/weights/b.tmp-1")).unwrap().commit(None).unwrap();
        assert_eq!(names(&root.path().join("run/weights")).len(), 2);
        sweep(root.path()).unwrap();
        assert_eq!(names(&root.path().join("run/weights")), ["b.tmp-1"]);
        sweep(&root.path().join("nothing")).unwrap();
    }
}
