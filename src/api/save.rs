//! Saving a run's weights (protocol §7.7, §7.9, §7.10).

use axum::extract::State;
use chrono::Utc;
use tinderbox_client::types::weights::{
    SamplingClientKind, SaveWeightsExternalRequest, SaveWeightsForSamplerRequest, SaveWeightsRequest,
};

use crate::command::{RunCommand, Save};
use crate::error::Error;
use crate::futures::complete::Completion;
use crate::futures::meaning;
use crate::ids::{CheckpointKind, CheckpointPath};
use crate::store::Metadata;
use crate::store::checkpoints::CheckpointRow;
use crate::store::samplers::{SamplerRow, SamplerSource};
use crate::validate::metadata::bounded;
use crate::validate::weights::{new_path, recipients, ttl};

use super::auth::Owner;
use super::body::NumberedBody;
use super::error::ApiResult;
use super::quota::refused;
use super::state::App;
use super::submit::{Numbered, Promise};

/// A training checkpoint: weights, optimiser, step count. A name that exists is refused unless `overwrite` is true.
/// What replaces a published checkpoint stays published; the lifetime is the new save's: without one it never expires.
pub async fn save_weights(
    State(app): State<App>,
    Owner(owner): Owner,
    NumberedBody(r, permit): NumberedBody<SaveWeightsRequest>,
) -> ApiResult<Promise> {
    let n = app.numbered(owner, &r.model_id, r.seq_id, permit).await?;
    let meaning = meaning::of_request("save_weights", &r);
    let path = new_path(&n.run.row.id, CheckpointKind::Training, r.path.as_deref(), n.seq);
    let path = n.checked(&app, path)?;
    let ttl = n.checked(&app, ttl(r.ttl_seconds))?;
    n.checked(&app, bounded("user_metadata", &r.user_metadata))?;
    if let Some(promise) = n.repeated(&app, meaning)? {
        return Ok(promise);
    }
    if !r.overwrite && app.store().checkpoint(&path).await?.is_some() {
        // A repeat may have been completed since it was looked for.
        if let Some(promise) = n.repeated(&app, meaning)? {
            return Ok(promise);
        }
        let taken = Error::user(format!("{path} exists; save with overwrite=true or under another name"));
        n.checked(&app, Err::<(), _>(taken))?;
    }
    room(&app, &n, &path).await?;
    let row = new_row(&app, &n, path, r.user_metadata);
    let save = Save::Training { dir: row.dir.clone() };
    n.issue(&app, meaning, RunCommand::Save(save), Completion::Save { row, ttl, overwrite: r.overwrite })
}

/// A named sampler checkpoint, which replaces one of the same name, or an ephemeral sampler: over a snapshot, or one that
/// moves with the run's later in-flight saves.
pub async fn save_weights_for_sampler(
    State(app): State<App>,
    Owner(owner): Owner,
    NumberedBody(r, permit): NumberedBody<SaveWeightsForSamplerRequest>,
) -> ApiResult<Promise> {
    let n = app.numbered(owner, &r.model_id, r.seq_id, permit).await?;
    match (&r.path, r.sampling_session_seq_id) {
        (Some(name), None) => {
            let meaning = meaning::of_request("save_weights_for_sampler", &r);
            let path = n.checked(&app, new_path(&n.run.row.id, CheckpointKind::Sampler, Some(name), n.seq))?;
            let ttl = n.checked(&app, ttl(r.ttl_seconds))?;
            n.checked(&app, bounded("user_metadata", &r.user_metadata))?;
            if let Some(promise) = n.repeated(&app, meaning)? {
                return Ok(promise);
            }
            room(&app, &n, &path).await?;
            let row = new_row(&app, &n, path, r.user_metadata);
            let save = Save::Sampler { dir: row.dir.clone() };
            n.issue(&app, meaning, RunCommand::Save(save), Completion::Save { row, ttl, overwrite: true })
        }
        (None, Some(slot)) => ephemeral(&app, n, slot, r.kind).await,
        _ => {
            let both = Error::user("exactly one of path and sampling_session_seq_id must be given");
            Err(n.checked(&app, Err::<Promise, _>(both)).expect_err("it was an error").into())
        }
    }
}

/// A retry of this request takes a new sampler number, so the number is no part of what the request means.
async fn ephemeral(app: &App, n: Numbered, slot: u64, kind: SamplingClientKind) -> ApiResult<Promise> {
    let meaning = meaning::of_request("snapshot", &kind);
    if let Some(promise) = n.repeated(app, meaning)? {
        return Ok(promise);
    }
    let run = &n.run.row;
    let id = run.session.sampler(slot);
    if app.store().sampler(&id).await?.is_some() {
        if let Some(promise) = n.repeated(app, meaning)? {
            return Ok(promise);
        }
        let taken = Error::user(format!("sampling_session_seq_id {slot} is taken in session {}", run.session));
        n.checked(app, Err::<(), _>(taken))?;
    }
    let row = SamplerRow {
        id: id.clone(),
        session: run.session.clone(),
        owner: n.owner.clone(),
        base_model: run.base_model.clone(),
        source: SamplerSource::Snapshot(run.id.clone()),
        created_at: Utc::now(),
    };
    let save = match kind {
        SamplingClientKind::Snapshot => Save::Snapshot { sampler: id },
        SamplingClientKind::Inflight => Save::Inflight { sampler: id },
    };
    n.issue(app, meaning, RunCommand::Save(save), Completion::Snapshot(row))
}

/// An export for download, replacing one of the same name.
pub async fn save_weights_external(
    State(app): State<App>,
    Owner(owner): Owner,
    NumberedBody(r, permit): NumberedBody<SaveWeightsExternalRequest>,
) -> ApiResult<Promise> {
    let n = app.numbered(owner, &r.model_id, r.seq_id, permit).await?;
    let meaning = meaning::of_request("save_weights_external", &r);
    let path = n.checked(&app, new_path(&n.run.row.id, CheckpointKind::External, Some(&r.path), n.seq))?;
    let ttl = n.checked(&app, ttl(r.ttl_seconds))?;
    let recipients = n.checked(&app, recipients(r.age_encryption_recipients))?;
    if let Some(promise) = n.repeated(&app, meaning)? {
        return Ok(promise);
    }
    room(&app, &n, &path).await?;
    let row = new_row(&app, &n, path, None);
    let save = Save::External { dir: row.dir.clone(), recipients };
    n.issue(&app, meaning, RunCommand::Save(save), Completion::Save { row, ttl, overwrite: true })
}

/// Refuses when the account's disk is full already; what is written is measured again before it is listed.
async fn room(app: &App, n: &Numbered, path: &CheckpointPath) -> ApiResult<()> {
    let room = app.futures().check_disk(&n.owner, path, 0).await;
    n.checked(app, room).map_err(refused)
}

fn new_row(app: &App, n: &Numbered, path: CheckpointPath, user_metadata: Option<Metadata>) -> CheckpointRow {
    CheckpointRow {
        dir: app.new_checkpoint_dir(&path),
        path,
        owner: n.owner.clone(),
        base_model: n.run.row.base_model.clone(),
        kind: n.run.row.kind,
        size_bytes: 0,
        created_at: Utc::now(),
        expires_at: None,
        public: false,
        user_metadata: user_metadata.unwrap_or_default(),
    }
}
