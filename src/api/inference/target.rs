//! What a `model` field names: a base model, a checkpoint or a sampler.

use crate::accounts::usage::Work;
use crate::api::sampling;
use crate::api::state::App;
use crate::command::SampleSource;
use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};
use crate::ids::{CheckpointPath, OwnerId, SamplerId, SessionId};
use crate::validate::runs::base_name;
use crate::validate::weights::sampling_path;

/// Weights to sample from.
#[derive(Clone, Debug)]
pub struct Target {
    pub model: ModelInfo,
    pub source: SampleSource,
    /// The sampler's, or one that nobody else knows: when it ends, the request ends.
    pub session: SessionId,
    /// What its tokens are counted under.
    pub work: Work,
}

impl App {
    /// `name` is a served base model, `tinker://RUN/sampler_weights/NAME` (or `weights`), both as `BASE;PATH`, or a
    /// sampler's id.
    ///
    /// # Errors
    /// Not found for what does not exist for this owner; a user error for malformed paths and a base model that is not
    /// the checkpoint's.
    pub async fn target(&self, owner: &OwnerId, name: &str) -> Result<Target> {
        if let Some(model) = self.engine().model(base_name(name).0) {
            let (source, session) = (SampleSource::Base, SessionId::random());
            return Ok(Target { model: model.clone(), source, session, work: Work::Other });
        }
        if let Some((base, path)) = name.split_once(';') {
            let target = self.checkpoint_target(owner, &sampling_path(path)?).await?;
            if target.model.name != base_name(base).0 {
                return Err(Error::user(format!(
                    "model: {path} was trained from {:?}, not from {base:?}",
                    target.model.name
                )));
            }
            return Ok(target);
        }
        if name.starts_with("tinker://") {
            return self.checkpoint_target(owner, &sampling_path(name)?).await;
        }
        if name.contains(":sample:") {
            let row = self.sampler(owner, &SamplerId(name.into())).await?;
            let (source, _) = sampling::weights(self, owner, &row).await?;
            let (session, work) = (row.session.clone(), Work::Sampler(row.id.clone()));
            let model = self.model_of(&row.base_model, format_args!("sampler {}", row.id))?.clone();
            return Ok(Target { model, source, session, work });
        }
        Err(Error::not_found(format!(
            "there is no model {name:?}; served are {}, and tinker://RUN/sampler_weights/NAME",
            self.served()
        )))
    }

    async fn checkpoint_target(&self, owner: &OwnerId, path: &CheckpointPath) -> Result<Target> {
        let row = self.readable(owner, path).await?;
        let model = self.model_of(&row.base_model, path)?;
        let source = SampleSource::Checkpoint(row.dir);
        let work = Work::Run(path.run.clone());
        Ok(Target { model: model.clone(), source, session: SessionId::random(), work })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::error::Category;
    use crate::store::checkpoints::CheckpointRow;
    use crate::store::testing::checkpoint;

    #[tokio::test]
    async fn every_form_of_a_name() {
        let (app, _engine) = testing::app().await;
        let path = "tinker://s:train:0/sampler_weights/a";
        let row = CheckpointRow { dir: "/data/a".into(), ..checkpoint(path, &owner().0) };
        app.store().put_checkpoint(&row).await.unwrap();
        let source = async |owner: OwnerId, name: &str| app.target(&owner, name).await.map(|t| t.source);
        let files = SampleSource::Checkpoint("/data/a".into());
        assert_eq!(source(owner(), "tiny").await.unwrap(), SampleSource::Base);
        assert_eq!(source(owner(), path).await.unwrap(), files);
        assert_eq!(source(owner(), &format!("tiny;{path}")).await.unwrap(), files);
        let e = source(owner(), &format!("other;{path}")).await.unwrap_err();
        assert!(e.message.contains("not from \"other\""), "{e}");
        let stranger = || OwnerId("other".into());
        for missing in [path, &format!("tiny;{path}"), "s:sample:0", "tinker://r/weights/b", "gpt-4o"] {
            assert_eq!(source(stranger(), missing).await.unwrap_err().category, Category::NotFound, "{missing}");
        }
        assert_eq!(source(owner(), "tinker://r").await.unwrap_err().category, Category::User);
        app.store().set_checkpoint_public(&row.path, true).await.unwrap();
        assert_eq!(source(stranger(), path).await.unwrap(), files);
    }
}
