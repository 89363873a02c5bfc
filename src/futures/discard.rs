//! How checkpoint directories go: only after everybody who may still be reading one had time to finish.

use std::path::{Path, PathBuf};

use super::Futures;

impl Futures {
    /// Delete a directory that no checkpoint names any more, a while from now, unless a sampler still reads it: then the
    /// end of that sampler's session comes back to it. When the server ends before, the next start finds it.
    pub fn discard(&self, dir: PathBuf) {
        let (files, store) = (self.retention.files, self.store.clone());
        self.runtime.spawn(async move {
            tokio::time::sleep(files).await;
            match store.dir_is_in_use(&dir).await {
                Ok(false) => remove(&dir).await,
                Ok(true) => tracing::debug!(dir = %dir.display(), "files are kept for a sampler"),
                Err(e) => tracing::warn!(dir = %dir.display(), error = %e, "files are kept until the next start"),
            }
        });
    }
}

/// Best effort: a directory that stays costs disk, not correctness. It goes as a whole: a late reader finds nothing
/// rather than a half.
pub(super) async fn remove(dir: &Path) {
    let leaving = dir.with_file_name(format!("~gone-{}", uuid::Uuid::new_v4()));
    let removed = match tokio::fs::rename(dir, &leaving).await {
        Ok(()) => tokio::fs::remove_dir_all(&leaving).await,
        Err(e) => Err(e),
    };
    // Its kind's and its run's directories too, when they are empty.
    for parent in dir.ancestors().skip(1).take(2) {
        if tokio::fs::remove_dir(parent).await.is_err() {
            break;
        }
    }
    if let Err(e) = removed
        && e.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), error = %e, "checkpoint directory not removed");
    }
}
