//! Weights on their way in: files arrive one by one in a directory of their own, and become a checkpoint together or
//! vanish.

pub mod adapter;
mod adapter_config;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use chrono::{DateTime, TimeDelta, Utc};

use crate::error::{Error, Result};
use crate::ids::{CheckpointPath, OwnerId};

/// From start to finish.
const LIFETIME: TimeDelta = TimeDelta::hours(1);

/// Uploads of one owner that are not finished.
const MAX_OPEN: usize = 16;

/// All uploads of this process; a restart forgets them and their files.
pub struct Uploads {
    root: PathBuf,
    /// Of an owner's unfinished uploads together.
    limit_bytes: u64,
    uploads: Mutex<HashMap<String, Arc<Upload>>>,
}

pub struct Upload {
    pub id: String,
    pub owner: OwnerId,
    pub expires: DateTime<Utc>,
    /// What the client wants of it, as it said at the start.
    pub wish: Wish,
    dir: PathBuf,
    /// By name, in bytes.
    files: HashMap<String, u64>,
    /// One transfer for each file at a time.
    pub transfers: tokio::sync::Semaphore,
    /// The checkpoint it became. Held while it is made.
    pub outcome: tokio::sync::Mutex<Option<CheckpointPath>>,
}

/// What an upload is to become.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub name: String,
    /// Served name of the base model; `None` = the one that the adapter names.
    pub base_model: Option<String>,
    pub ttl: Option<TimeDelta>,
    pub project_id: Option<String>,
    pub user_metadata: BTreeMap<String, String>,
}

impl Uploads {
    pub fn new(root: PathBuf, limit_bytes: u64) -> Self {
        if let Err(e) = std::fs::remove_dir_all(&root)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %root.display(), error = %e, "half uploads were not removed");
        }
        Self { root, limit_bytes, uploads: Mutex::default() }
    }

    /// A new upload of files by name and size in bytes.
    ///
    /// # Errors
    /// User errors that name the file or the limit.
    pub fn start(&self, owner: &OwnerId, files: &[(String, u64)], wish: Wish) -> Result<Arc<Upload>> {
        let sizes = adapter::expected_files(files)?;
        let mut uploads = self.lock();
        let open = uploads.values().filter(|u| u.owner == *owner && u.expires > Utc::now() && !u.is_done());
        let (count, held) = open.fold((0, 0u64), |(n, bytes), u| (n + 1, bytes + u.files.values().sum::<u64>()));
        if count >= MAX_OPEN {
            return Err(Error::user(format!(
                "{count} uploads of this account are not finished, of at most {MAX_OPEN}; finish one first"
            )));
        }
        let size: u64 = sizes.values().fold(0, |sum, size| sum.saturating_add(*size));
        if held.saturating_add(size) > self.limit_bytes {
            return Err(Error::user(format!(
                "the files have {size} bytes, other unfinished uploads of this account {held}; together the limit is {} \
                 bytes",
                self.limit_bytes
            )));
        }
        let id = uuid::Uuid::new_v4().to_string();
        let dir = self.root.join(&id);
        std::fs::create_dir_all(&dir)?;
        let expires = Utc::now() + LIFETIME;
        let upload = Arc::new(Upload {
            id: id.clone(),
            owner: owner.clone(),
            expires,
            wish,
            dir,
            transfers: tokio::sync::Semaphore::new(sizes.len()),
            files: sizes,
            outcome: tokio::sync::Mutex::new(None),
        });
        uploads.insert(id, upload.clone());
        Ok(upload)
    }

    /// Not found when there is none, or no longer.
    pub fn get(&self, id: &str) -> Result<Arc<Upload>> {
        let found = self.lock().get(id).filter(|u| u.expires > Utc::now()).cloned();
        found.ok_or_else(|| Error::not_found(format!("there is no upload {id:?}; one lasts an hour from its start")))
    }

    /// Forgets an upload that came to nothing.
    pub fn abandon(&self, upload: &Upload) {
        self.lock().remove(&upload.id);
        upload.remove_files();
    }

    /// To be called every now and then.
    pub fn forget_expired(&self) {
        let mut uploads = self.lock();
        let expired = uploads.extract_if(|_, u| u.expires <= Utc::now());
        expired.for_each(|(_, upload)| upload.remove_files());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Upload>>> {
        self.uploads.lock().expect("no code panics while it holds the uploads")
    }
}

impl Upload {
    /// Names of the files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The announced size of a file; not found when it was not announced.
    pub fn size_of(&self, file: &str) -> Result<u64> {
        let size = self.files.get(file).copied();
        size.ok_or_else(|| Error::not_found(format!("upload {} has no file {file:?}", self.id)))
    }

    /// Where the whole file belongs, and where a transfer of it may write. A file may be sent again.
    pub fn places(&self, file: &str) -> (PathBuf, PathBuf) {
        let transfer = self.dir.join(format!("~{}", uuid::Uuid::new_v4()));
        (self.dir.join(file), transfer)
    }

    /// The directory with all files in it.
    ///
    /// # Errors
    /// A user error that names those that have not arrived.
    pub fn complete(&self) -> Result<&Path> {
        let mut missing: Vec<_> = self.files().filter(|name| !self.dir.join(name).is_file()).collect();
        missing.sort();
        if missing.is_empty() {
            return Ok(&self.dir);
        }
        Err(Error::user(format!("upload {}: not arrived yet: {}", self.id, missing.join(", "))))
    }

    pub fn remove_files(&self) {
        if let Err(e) = std::fs::remove_dir_all(&self.dir)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %self.dir.display(), error = %e, "an upload's files were not removed");
        }
    }

    fn is_done(&self) -> bool {
        self.outcome.try_lock().is_ok_and(|outcome| outcome.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerId {
        OwnerId("me".into())
    }

    fn files(weights: u64) -> Vec<(String, u64)> {
        vec![("adapter_config.json".into(), 2), ("adapter_model.safetensors".into(), weights)]
    }

    #[test]
    fn an_owners_uploads_are_bounded_together() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = Uploads::new(dir.path().join("uploads"), 100);
        let first = uploads.start(&owner(), &files(50), Wish::default()).unwrap();
        let e = uploads.start(&owner(), &files(50), Wish::default()).err().unwrap();
        assert!(e.message.contains("have 52 bytes") && e.message.contains("account 52"), "{e}");
        assert!(uploads.start(&OwnerId("other".into()), &files(50), Wish::default()).is_ok());
        uploads.abandon(&first);
        assert!(uploads.start(&owner(), &files(50), Wish::default()).is_ok());
        for _ in 1..MAX_OPEN {
            uploads.start(&owner(), &files(1), Wish::default()).unwrap();
        }
        let e = uploads.start(&owner(), &files(1), Wish::default()).err().unwrap().message;
        assert!(e.contains("16 uploads of this account are not finished, of at most 16;"), "{e}");
    }

    #[test]
    fn half_uploads_vanish() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("uploads");
        let uploads = Uploads::new(root.clone(), 100);
        let upload = uploads.start(&owner(), &files(1), Wish::default()).unwrap();
        std::fs::write(upload.places("adapter_config.json").0, "{}").unwrap();
        let e = upload.complete().unwrap_err().message;
        assert!(e.ends_with("not arrived yet: adapter_model.safetensors"), "{e}");
        assert!(uploads.get(&upload.id).is_ok() && uploads.get("other").is_err());
        uploads.abandon(&upload);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        assert!(uploads.get(&upload.id).is_err());
        uploads.start(&owner(), &files(1), Wish::default()).unwrap();
        Uploads::new(root.clone(), 100);
        assert!(!root.exists(), "a restart leaves none");
    }
}
