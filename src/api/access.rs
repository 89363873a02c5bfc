//! Who may use which session, run, sampler and checkpoint: what is not the owner's does not exist for them.

use std::sync::Arc;

use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};
use crate::ids::{CheckpointPath, ModelId, OwnerId, SamplerId, SessionId};
use crate::store::checkpoints::CheckpointRow;
use crate::store::runs::RunRow;
use crate::store::samplers::SamplerRow;
use crate::store::sessions::SessionRow;

use super::state::App;

impl App {
    /// The session, when it is this owner's.
    pub async fn session(&self, owner: &OwnerId, id: &SessionId) -> Result<Arc<SessionRow>> {
        let row = self.known().session(self.store(), id).await?.filter(|s| s.owner == *owner);
        let row = row.ok_or_else(|| Error::not_found(format!("there is no session {id:?}", id = id.0)))?;
        self.known().saw(id);
        Ok(row)
    }

    /// As [`Self::session`], and it must not be finished.
    pub async fn open_session(&self, owner: &OwnerId, id: &SessionId) -> Result<Arc<SessionRow>> {
        let row = self.session(owner, id).await?;
        match &row.finished {
            None => Ok(row),
            Some(_) => Err(Error::user(format!("session {id} is finished: it takes no further requests"))),
        }
    }

    /// The run, when it is this owner's and its session goes on; also one that is still being created.
    pub async fn run(&self, owner: &OwnerId, id: &ModelId) -> Result<Run> {
        let row = self.known().run(self.store(), id).await?.filter(|r| r.owner == *owner);
        let row = row.ok_or_else(|| no_run(id))?;
        self.trainable(id).await?;
        self.open_session(owner, &row.session).await?;
        let model = self.model(&row.base_model)?.clone();
        self.known().touch(self.store(), id);
        Ok(Run { row, model })
    }

    /// Refuses runs that only hold weights.
    async fn trainable(&self, id: &ModelId) -> Result<()> {
        if self.known().is_trained(id) {
            return Ok(());
        }
        match self.store().held_run(id).await? {
            None => self.known().trains(id),
            Some(origin) => {
                return Err(Error::user(format!(
                    "run {id} holds {origin} and cannot be trained; create a new run from its checkpoint"
                )));
            }
        }
        Ok(())
    }

    /// The sampler, when it is this owner's and its session goes on.
    pub async fn sampler(&self, owner: &OwnerId, id: &SamplerId) -> Result<Arc<SamplerRow>> {
        let row = self.known().sampler(self.store(), id).await?.filter(|r| r.owner == *owner);
        let row = row.ok_or_else(|| Error::not_found(format!("there is no sampler {:?}", id.0)))?;
        self.open_session(owner, &row.session).await?;
        Ok(row)
    }

    /// A checkpoint that this owner may read: an own or a published one.
    pub async fn readable(&self, owner: &OwnerId, path: &CheckpointPath) -> Result<CheckpointRow> {
        let row = self.store().checkpoint(path).await?.filter(|c| c.public || c.owner == *owner);
        row.ok_or_else(|| no_checkpoint(path))
    }

    /// A checkpoint that this owner may change.
    pub async fn owned(&self, owner: &OwnerId, path: &CheckpointPath) -> Result<CheckpointRow> {
        let row = self.store().checkpoint(path).await?.filter(|c| c.owner == *owner);
        row.ok_or_else(|| no_checkpoint(path))
    }

    /// The served base model of this name, without `:full`.
    pub fn model(&self, name: &str) -> Result<&ModelInfo> {
        self.engine().model(name).ok_or_else(|| {
            let served: Vec<&str> = self.engine().models().iter().map(|m| m.name.as_str()).collect();
            Error::user(format!("base model {name:?} is not served here; served are: {}", served.join(", ")))
        })
    }

    /// The run's request under this number is refused, if the run is this owner's at all.
    pub async fn refuse(&self, owner: &OwnerId, model: ModelId, seq: u64) {
        if seq > 0 && self.run(owner, &model).await.is_ok() {
            self.futures().refuse(model, seq);
        }
    }
}

/// A run and the base model under it.
pub struct Run {
    pub row: Arc<RunRow>,
    pub model: ModelInfo,
}

pub fn no_run(id: &ModelId) -> Error {
    Error::not_found(format!("there is no training run {:?}", id.0))
}

pub fn no_checkpoint(path: &CheckpointPath) -> Error {
    Error::not_found(format!("there is no checkpoint {path}"))
}
