//! How checkpoint directories go: only after everybody who may still be reading one had time to finish.

use std::path::{Path, PathBuf};

use super::Futures;

impl Futures {
    /// Delete a directory that no row names any more, a while from now. When the server ends before, the next start
    /// finds it.
    pub fn discard(&self, dir: PathBuf) {
        let files = self.retention.files;
        self.runtime.spawn(async move {
            tokio::time::sleep(files).await;
            remove(&dir).await;
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
    if let Err(e) = removed
        && e.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), error = %e, "checkpoint directory not removed");
    }
}
