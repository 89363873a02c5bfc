//! New runs, and what there is to know about one (protocol §7.3, §7.4).

use axum::Json;
use axum::extract::State;
use chrono::Utc;
use tinderbox_client::types::training::{
    CreateModelRequest, GetInfoRequest, GetInfoResponse, ModelData, OptimizerConfig,
};

use crate::command::{Command, Restore, RunCommand, RunKind};
use crate::engine::handle::ModelInfo;
use crate::error::Error;
use crate::futures::complete::Completion;
use crate::futures::issue::{Key, Request};
use crate::futures::meaning;
use crate::ids::{CheckpointPath, ModelId, OwnerId, RequestId, SessionId};
use crate::store::Metadata;
use crate::store::runs::RunRow;
use crate::validate;
use crate::validate::metadata::bounded;
use crate::validate::runs::{FULL_SUFFIX, base_name};

use super::access::no_run;
use super::auth::Owner;
use super::body::JsonBody;
use super::error::ApiResult;
use super::state::App;
use super::submit::{Promise, promise};
use super::trace;

pub async fn create_model(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<CreateModelRequest>,
) -> ApiResult<Promise> {
    let meaning = meaning::of_request("create_model", &r);
    let session = SessionId(r.session_id.clone());
    let key = Key::Creation { session: session.clone(), model_seq: r.model_seq_id };
    let (base, _) = base_name(&r.base_model);
    let base = app.model(base)?.name.clone();
    let kind = validate::runs::kind(&r, app.limits().max_rank, app.seed(&key))?;
    bounded("user_metadata", &r.user_metadata)?;
    let user_metadata = r.user_metadata.unwrap_or_default();
    let creation = Creation { session, model_seq: r.model_seq_id, meaning, base, kind, user_metadata, from: None };
    creation.issue(&app, owner).await
}

/// What `create_model` and a creating `load_weights` have in common.
pub struct Creation {
    pub session: SessionId,
    pub model_seq: u64,
    pub meaning: u64,
    pub base: String,
    pub kind: RunKind,
    pub user_metadata: Metadata,
    pub from: Option<(CheckpointPath, Restore)>,
}

impl Creation {
    /// The promise of the new run, which is listed only when it is there.
    pub async fn issue(self, app: &App, owner: OwnerId) -> ApiResult<Promise> {
        app.open_session(&owner, &self.session).await?;
        let model = self.session.model(self.model_seq);
        trace::on_run(&model, None);
        let key = Key::Creation { session: self.session.clone(), model_seq: self.model_seq };
        if let Some(id) = app.futures().find(&key, self.meaning)? {
            return Ok(promise(id, Some(&model)));
        }
        if app.store().run(&model).await?.is_some() {
            // A repeat may have been completed since it was looked for.
            if let Some(id) = app.futures().find(&key, self.meaning)? {
                return Ok(promise(id, Some(&model)));
            }
            let lost = format!(
                "run {model} was created before this server started and is not in memory; take the next model_seq_id"
            );
            return Err(Error::user(lost).into());
        }
        let now = Utc::now();
        let row = RunRow {
            id: model.clone(),
            session: self.session,
            owner: owner.clone(),
            base_model: self.base.clone(),
            kind: self.kind,
            user_metadata: self.user_metadata,
            created_at: now,
            last_request_at: now,
            corrupted: false,
            fault: None,
        };
        let (path, restore) = self.from.unzip();
        let create = RunCommand::Create { base: self.base, kind: self.kind, restore };
        let command = Command::Run { owner: owner.clone(), model: model.clone(), seq: 0, command: create };
        let completion = Completion::Create { row: row.clone(), path };
        let (id, meaning) = (RequestId::random(), self.meaning);
        let request = Request { id, owner, key, meaning, command, completion, permit: None };
        app.begin_run(&row)?;
        let issued = app.futures().issue(request)?;
        if issued.new {
            let (session, owner) = (row.session.clone(), row.owner.clone());
            app.known().announce_run(row);
            // A session that ended meanwhile did not see this run yet.
            if app.has_ended(&session).await? {
                app.futures().unload(owner, model.clone());
            }
        }
        Ok(promise(issued.id, Some(&model)))
    }
}

pub async fn get_info(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<GetInfoRequest>,
) -> ApiResult<Json<GetInfoResponse>> {
    let id = ModelId(r.model_id);
    let run = app.store().run(&id).await?.filter(|r| r.owner == owner).ok_or_else(|| no_run(&id))?;
    let name = wire_name(&run.base_model, run.kind);
    let model = app.engine().model(&run.base_model);
    Ok(Json(GetInfoResponse {
        model_id: run.id.0,
        model_data: ModelData {
            arch: model.map(|m| m.arch.clone()),
            model_name: Some(name.clone()),
            tokenizer_id: model.map(tokenizer_id),
        },
        optimizer_config: OptimizerConfig::default(),
        is_lora: Some(matches!(run.kind, RunKind::Lora(_))),
        lora_rank: lora_rank(run.kind),
        model_name: Some(name),
    }))
}

/// The name a run's base model goes by on the wire: with `:full` when every weight is trained, so that a client that
/// creates a run from what it was told gets the same kind.
pub fn wire_name(base: &str, kind: RunKind) -> String {
    match kind {
        RunKind::Lora(_) => base.to_owned(),
        RunKind::Full => format!("{base}{FULL_SUFFIX}"),
    }
}

pub fn lora_rank(kind: RunKind) -> Option<i64> {
    match kind {
        RunKind::Lora(lora) => Some(lora.rank as i64),
        RunKind::Full => None,
    }
}

/// A name with a `/` is one a hub or a directory below the client's knows. Any other can only be found by its directory
/// on this machine, which is also where local clients run.
fn tokenizer_id(model: &ModelInfo) -> String {
    if model.name.contains('/') { model.name.clone() } else { model.dir.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::command::LoraConfig;
    use crate::engine::handle::Message;

    fn creation(session: &SessionId, rank: usize) -> Creation {
        let config = LoraConfig { rank, seed: 1, train_attn: true, train_mlp: true, train_unembed: true };
        Creation {
            session: session.clone(),
            model_seq: 0,
            meaning: rank as u64,
            base: "tiny".into(),
            kind: RunKind::Lora(config),
            user_metadata: Metadata::new(),
            from: None,
        }
    }

    #[tokio::test]
    async fn of_two_creations_under_one_number_the_loser_leaves_no_trace() {
        let (app, engine) = testing::app().await;
        let session = testing::session(&app, Utc::now()).await.id;
        let race = [4, 8, 4, 8, 4, 8].map(|rank| {
            let (app, creation) = (app.clone(), creation(&session, rank));
            tokio::spawn(async move { (rank, creation.issue(&app, owner()).await.is_ok()) })
        });
        let mut ranks = Vec::new();
        for one in race {
            let (rank, won) = one.await.unwrap();
            if won {
                ranks.push(rank);
            }
        }
        let run = app.run(&owner(), &session.model(0)).await.unwrap().row;
        assert!(ranks.iter().all(|rank| lora_rank(run.kind) == Some(*rank as i64)) && ranks.len() == 3, "{ranks:?}");
        assert!(matches!(engine.recv().unwrap(), Message::Submit(_)));
        assert!(engine.try_recv().is_err(), "submitted once");
    }
}
