//! Who may use which session, run, sampler and checkpoint: what is not the owner's does not exist for them.

use std::sync::Arc;

use chrono::Utc;

use crate::engine::handle::ModelInfo;
use crate::error::{Category, Error, Result};
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
        let model = self.model_of(&row.base_model, format_args!("run {id}"))?.clone();
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

    /// As [`Self::readable`]; or one that the account of `token`, a key or token of that account, may read. A token that
    /// is none is a user error, when it is needed.
    pub async fn readable_with(
        &self,
        owner: &OwnerId,
        token: Option<&str>,
        path: &CheckpointPath,
    ) -> Result<CheckpointRow> {
        let own = self.readable(owner, path).await;
        let (Err(e), Some(token)) = (&own, token) else { return own };
        if e.category != Category::NotFound {
            return own;
        }
        let other = self.keys().caller(Some(token), Utc::now()).map_err(|refused| {
            Error::user(format!("the access token for the weights of {path} is of no use: {}", refused.why))
        })?;
        self.readable(&other.owner, path).await
    }

    /// A checkpoint that this owner may change.
    pub async fn owned(&self, owner: &OwnerId, path: &CheckpointPath) -> Result<CheckpointRow> {
        let row = self.store().checkpoint(path).await?.filter(|c| c.owner == *owner);
        row.ok_or_else(|| no_checkpoint(path))
    }

    /// The served base model of this name, without `:full`.
    pub fn model(&self, name: &str) -> Result<&ModelInfo> {
        self.engine().model(name).ok_or_else(|| {
            Error::user(format!("base model {name:?} is not served here; served are: {}", self.served()))
        })
    }

    /// The base model that `whose`, a run, checkpoint or sampler, was made over; servers may come back with other models.
    pub fn model_of(&self, name: &str, whose: impl std::fmt::Display) -> Result<&ModelInfo> {
        self.engine().model(name).ok_or_else(|| {
            let served = self.served();
            Error::user(format!(
                "base model {name} of {whose} is no longer served here; start with --model {name}=DIR; served are: {served}"
            ))
        })
    }

    /// The names of all base models, for messages.
    pub fn served(&self) -> String {
        let served: Vec<&str> = self.engine().models().iter().map(|m| m.name.as_str()).collect();
        served.join(", ")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing;
    use crate::store::testing::{checkpoint, key, run};

    #[tokio::test]
    async fn a_checkpoint_is_read_by_its_owner_and_with_its_owners_key() {
        let (app, _engine) = testing::app().await;
        let (ann, bob) = (OwnerId("ann".into()), OwnerId("bob".into()));
        app.store().insert_key(key("ann", "tml-ann")).await.unwrap();
        app.keys().refresh(app.store()).await.unwrap();
        app.store().put_checkpoint(&checkpoint("tinker://s:train:0/weights/a", "ann")).await.unwrap();
        let token = app.keys().token(&app.keys().caller(Some("tml-ann"), Utc::now()).unwrap(), Utc::now());
        let read = async |owner, token, path: &str| {
            app.readable_with(owner, token, &path.parse().unwrap()).await.map_err(|e| e.category).map(|row| row.owner)
        };
        let path = "tinker://s:train:0/weights/a";
        assert_eq!(read(&ann, None, path).await, Ok(ann.clone()));
        assert_eq!(read(&ann, Some("tml-wrong"), path).await, Ok(ann.clone()), "not needed, so not looked at");
        assert_eq!(read(&bob, None, path).await, Err(Category::NotFound));
        assert_eq!(read(&bob, Some("tml-ann"), path).await, Ok(ann.clone()));
        assert_eq!(read(&bob, Some(&token), path).await, Ok(ann.clone()));
        assert_eq!(read(&bob, Some("tml-wrong"), path).await, Err(Category::User));
        assert_eq!(read(&bob, Some("tml-ann"), "tinker://s:train:0/weights/b").await, Err(Category::NotFound));
    }

    #[tokio::test]
    async fn a_run_whose_base_model_is_gone_says_how_to_get_it_back() {
        let (app, _engine) = testing::app().await;
        let session = testing::session(&app, Utc::now()).await;
        let id = session.id.model(0);
        let row = RunRow { base_model: "org/gone".into(), ..run(&id.0, &testing::owner().0) };
        app.store().insert_run(&row).await.unwrap();
        let message = app.run(&testing::owner(), &id).await.err().unwrap().message;
        let wanted = format!(
            "base model org/gone of run {id} is no longer served here; start with --model org/gone=DIR; served are: tiny"
        );
        assert_eq!(message, wanted);
        let other = app.run(&OwnerId("other".into()), &id).await.err().unwrap();
        assert_eq!(other.category, Category::NotFound, "nobody else hears of it");
    }
}
