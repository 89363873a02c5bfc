//! Loading a checkpoint's weights, and what it was made of (protocol §7.8, §7.15).

use axum::Json;
use axum::extract::State;
use tinderbox_client::types::checkpoints::{WeightsInfoRequest, WeightsInfoResponse};
use tinderbox_client::types::training::OptimizerConfig;
use tinderbox_client::types::weights::LoadWeightsRequest;

use crate::command::{Restore, RunCommand, RunKind};
use crate::error::{Error, Result};
use crate::futures::complete::Completion;
use crate::futures::issue::Key;
use crate::futures::meaning;
use crate::ids::{OwnerId, SessionId};
use crate::store::checkpoints::CheckpointRow;
use crate::validate::metadata::bounded;
use crate::validate::runs::{base_name, optimizer};
use crate::validate::weights::training_path;

use super::auth::Owner;
use super::body::{JsonBody, NumberedBody};
use super::create::{Creation, lora_rank, wire_name};
use super::error::ApiResult;
use super::state::App;
use super::submit::{Numbered, Promise, promise};

/// Either a new run from a checkpoint or, as old scripts do, a checkpoint into a run.
pub async fn load_weights(
    State(app): State<App>,
    Owner(owner): Owner,
    NumberedBody(r, permit): NumberedBody<LoadWeightsRequest>,
) -> ApiResult<Promise> {
    match (&r.session_id, r.model_seq_id, &r.model_id) {
        (Some(session), Some(slot), None) => create_from(&app, owner, SessionId(session.clone()), slot, &r).await,
        (None, None, Some(model)) => {
            let n = app.numbered(owner, model, r.seq_id, permit).await?;
            load_into(&app, n, &r).await
        }
        _ => Err(Error::user(
            "give either session_id and model_seq_id (a new run) or model_id and seq_id (an existing one)",
        )
        .into()),
    }
}

/// What is loaded, whoever's permission it takes.
fn meaning(r: &LoadWeightsRequest) -> u64 {
    meaning::of_request("load_weights", &LoadWeightsRequest { weights_access_token: None, ..r.clone() })
}

async fn create_from(
    app: &App,
    owner: OwnerId,
    session: SessionId,
    slot: u64,
    r: &LoadWeightsRequest,
) -> ApiResult<Promise> {
    let meaning = meaning(r);
    if let Some(config) = &r.optimizer_config {
        optimizer(config)?;
    }
    bounded("user_metadata", &r.user_metadata)?;
    app.open_session(&owner, &session).await?;
    let path = training_path(&r.path)?;
    // A repeat gets its promise also when the checkpoint has been deleted since.
    let key = Key::Creation { session: session.clone(), model_seq: slot };
    if let Some(id) = app.futures().find(&key, meaning)? {
        return Ok(promise(id, Some(&session.model(slot))));
    }
    let checkpoint = app.readable_with(&owner, r.weights_access_token.as_deref(), &path).await?;
    let base = base_for(app, &checkpoint, r.base_model.as_deref())?;
    let restore = Restore { dir: checkpoint.dir, optimizer: r.optimizer };
    let user_metadata = r.user_metadata.clone().unwrap_or_default();
    let from = Some((path, restore));
    Creation { session, model_seq: slot, meaning, base, kind: checkpoint.kind, user_metadata, from }
        .issue(app, owner)
        .await
}

/// The checkpoint's base model, or another served name of the same directory.
fn base_for(app: &App, checkpoint: &CheckpointRow, wanted: Option<&str>) -> Result<String> {
    let own = app.model_of(&checkpoint.base_model, &checkpoint.path);
    let Some(wanted) = wanted else { return own.map(|m| m.name.clone()) };
    let (wanted, _) = base_name(wanted);
    let model = app.model(wanted)?;
    let same = model.name == checkpoint.base_model || own.is_ok_and(|m| m.dir == model.dir);
    if same { Ok(model.name.clone()) } else { Err(other_base(checkpoint, wanted)) }
}

async fn load_into(app: &App, n: Numbered, r: &LoadWeightsRequest) -> ApiResult<Promise> {
    let meaning = meaning(r);
    let path = n.checked(app, training_path(&r.path))?;
    if let Some(promise) = n.repeated(app, meaning)? {
        return Ok(promise);
    }
    let checkpoint = app.readable_with(&n.owner, r.weights_access_token.as_deref(), &path).await;
    let checkpoint = n.checked(app, checkpoint)?;
    n.checked(app, fits(&checkpoint, &n))?;
    let restore = Restore { dir: checkpoint.dir, optimizer: r.optimizer };
    let completion = Completion::Load { model: n.run.row.id.clone(), path };
    n.issue(app, meaning, RunCommand::Load(restore), completion)
}

/// A live run keeps its base model, rank and trained matrices; only their values are loaded.
fn fits(checkpoint: &CheckpointRow, n: &Numbered) -> Result<()> {
    let run = &n.run.row;
    if run.base_model != checkpoint.base_model {
        return Err(other_base(checkpoint, &run.base_model));
    }
    let same = match (run.kind, checkpoint.kind) {
        (RunKind::Full, RunKind::Full) => true,
        (RunKind::Lora(a), RunKind::Lora(b)) => {
            (a.rank, a.train_attn, a.train_mlp, a.train_unembed) == (b.rank, b.train_attn, b.train_mlp, b.train_unembed)
        }
        _ => false,
    };
    if same {
        return Ok(());
    }
    Err(Error::user(format!(
        "{} was saved by a run of another kind ({}), run {} is {}; create a new run from the checkpoint instead",
        checkpoint.path,
        describe(checkpoint.kind),
        run.id,
        describe(run.kind)
    )))
}

fn describe(kind: RunKind) -> String {
    match kind {
        RunKind::Full => "full".into(),
        RunKind::Lora(l) => {
            format!("rank {}, attn {}, mlp {}, unembed {}", l.rank, l.train_attn, l.train_mlp, l.train_unembed)
        }
    }
}

fn other_base(checkpoint: &CheckpointRow, wanted: &str) -> Error {
    Error::user(format!("{} belongs to base model {:?}, not to {wanted:?}", checkpoint.path, checkpoint.base_model))
}

/// What a checkpoint of any kind was made of; own or published.
pub async fn weights_info(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<WeightsInfoRequest>,
) -> ApiResult<Json<WeightsInfoResponse>> {
    let row = app.readable(&owner, &r.tinker_path.parse()?).await?;
    let lora = match row.kind {
        RunKind::Lora(lora) => Some(lora),
        RunKind::Full => None,
    };
    Ok(Json(WeightsInfoResponse {
        base_model: wire_name(&row.base_model, row.kind),
        is_lora: lora.is_some(),
        lora_rank: lora_rank(row.kind),
        train_unembed: lora.map(|l| l.train_unembed),
        train_mlp: lora.map(|l| l.train_mlp),
        train_attn: lora.map(|l| l.train_attn),
        optimizer_config: OptimizerConfig::default(),
    }))
}
