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
use crate::ids::{CheckpointPath, ModelId, OwnerId, SessionId};
use crate::store::Metadata;
use crate::store::runs::RunRow;
use crate::validate;
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
        };
        let (path, restore) = self.from.unzip();
        let create = RunCommand::Create { base: self.base, kind: self.kind, restore };
        let command = Command::Run { model: model.clone(), seq: 0, command: create };
        app.known().announce_run(row.clone());
        let completion = Completion::Create { row, path };
        let id = app.futures().issue(Request { owner, key, meaning: self.meaning, command, completion })?;
        Ok(promise(id, Some(&model)))
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
