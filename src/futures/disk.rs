//! The quota of what an account's checkpoints take on disk.

use super::Futures;
use crate::error::{Error, Result};
use crate::ids::{CheckpointPath, OwnerId};

impl Futures {
    /// A user error when `more` bytes under this path would exceed the owner's quota; what lies there is replaced.
    pub async fn check_disk(&self, owner: &OwnerId, path: &CheckpointPath, more: u64) -> Result<()> {
        let Some(limit) = self.accounts.quotas(owner).disk_bytes else { return Ok(()) };
        let used = self.store.stored_bytes(owner, Some(path)).await?;
        if used.saturating_add(more) <= limit && used < limit {
            return Ok(());
        }
        let this = if more > 0 { format!(" and {path} takes {more}") } else { String::new() };
        Err(Error::user(format!(
            "quota disk_bytes: limit {limit}, used {used}{this}; delete checkpoints of this account, or give them a \
             ttl_seconds, to save more"
        )))
    }
}
