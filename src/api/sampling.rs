//! Samplers and samples (protocol §7.11 to 7.13, ch. 12).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use chrono::Utc;
use tinderbox_client::types::futures::UntypedApiFuture;
use tinderbox_client::types::sampling::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse, GetSamplerResponse, JoinSamplingSessionRequest,
    JoinSamplingSessionResponse, SampleRequest,
};

use crate::command::{Command, SampleSource};
use crate::error::{Error, Result};
use crate::futures::complete::Completion;
use crate::futures::issue::{Key, Request};
use crate::futures::meaning;
use crate::ids::{OwnerId, SamplerId, SessionId};
use crate::store::samplers::{SamplerRow, SamplerSource};
use crate::validate;
use crate::validate::runs::base_name;
use crate::validate::weights::sampling_path;

use super::auth::Owner;
use super::body::JsonBody;
use super::error::ApiResult;
use super::state::App;
use super::submit::Promise;
use super::trace;

/// A typo in the model or path shows here and not at the first sample. A repeat gets the same sampler.
pub async fn create_sampling_session(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<CreateSamplingSessionRequest>,
) -> ApiResult<Json<CreateSamplingSessionResponse>> {
    let session = SessionId(r.session_id.clone());
    app.open_session(&owner, &session).await?;
    let (base_model, source) = source(&app, &owner, &r).await?;
    let id = session.sampler(r.sampling_session_seq_id);
    let row = SamplerRow { id: id.clone(), session, owner, base_model, source, created_at: Utc::now() };
    if let Some(existing) = app.known().sampler(app.store(), &id).await? {
        same(&existing, &row)?;
    } else if let Err(e) = app.store().insert_sampler(&row).await {
        // Another request of the same number may have been quicker.
        let existing = app.known().sampler(app.store(), &id).await?.ok_or(e)?;
        same(&existing, &row)?;
    }
    Ok(Json(CreateSamplingSessionResponse { sampling_session_id: id.0 }))
}

/// Base model and weights. A path decides the weights when both are given.
async fn source(app: &App, owner: &OwnerId, r: &CreateSamplingSessionRequest) -> Result<(String, SamplerSource)> {
    match (&r.model_path, &r.base_model) {
        (Some(path), _) => {
            let path = sampling_path(path)?;
            let row = app.readable(owner, &path).await?;
            let base =
                app.model(&row.base_model).map_err(|e| e.context(format_args!("{path} needs its base model")))?;
            Ok((base.name.clone(), SamplerSource::Checkpoint(path)))
        }
        (None, Some(name)) => {
            let (base, _) = base_name(name);
            Ok((app.model(base)?.name.clone(), SamplerSource::Base))
        }
        (None, None) => Err(Error::user("one of base_model and model_path must be given")),
    }
}

fn same(existing: &SamplerRow, wanted: &SamplerRow) -> Result<()> {
    if (&existing.base_model, &existing.source) == (&wanted.base_model, &wanted.source) {
        return Ok(());
    }
    Err(Error::user(format!(
        "sampler {} exists and samples from other weights; take the next sampling_session_seq_id",
        wanted.id
    )))
}

pub async fn join_sampling_session(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<JoinSamplingSessionRequest>,
) -> ApiResult<Json<JoinSamplingSessionResponse>> {
    let row = app.sampler(&owner, &SamplerId(r.sampling_session_id)).await?;
    let client_counter = app.store().join_sampler(&row.id).await?;
    Ok(Json(JoinSamplingSessionResponse { client_counter }))
}

pub async fn get_sampler(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
) -> ApiResult<Json<GetSamplerResponse>> {
    let row = app.sampler(&owner, &SamplerId(id)).await?;
    let model_path = match &row.source {
        SamplerSource::Checkpoint(path) => Some(path.to_string()),
        SamplerSource::Base | SamplerSource::Snapshot(_) => None,
    };
    Ok(Json(GetSamplerResponse { sampler_id: row.id.0.clone(), base_model: row.base_model.clone(), model_path }))
}

/// Accepts the request and names its sequences; a repeat gets the same promise and the same names.
pub async fn asample(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<SampleRequest>,
) -> ApiResult<Promise> {
    let id = SamplerId(r.sampling_session_id.clone());
    let seq = r.seq_id.ok_or_else(|| Error::user("seq_id is missing: it counts the requests of a sampler, from 0"))?;
    trace::on_sampler(&id, seq);
    let row = app.sampler(&owner, &id).await?;
    let key = Key::Sample { sampler: id.clone(), seq };
    let meaning = meaning::of_request("asample", &r);
    let source = weights(&app, &owner, &row).await?;
    let model = app.model(&row.base_model)?;
    let checked = validate::sampling::sample(r, source, model, app.limits().max_num_samples, app.seed(&key))?;
    let num_samples = checked.request.num_samples;
    let completion = Completion::Sample { targets: checked.targets };
    let command = Command::Sample(checked.request);
    let request_id = app.futures().issue(Request { owner, key, meaning, command, completion })?;
    let sequences = (0..num_samples).map(|i| format!("{id}:{seq}:{i}")).collect();
    Ok(Json(UntypedApiFuture { request_id: request_id.0, model_id: None, sample_sequence_ids: Some(sequences) }))
}

/// A checkpoint is looked up for every request: it may have been replaced, withdrawn or deleted.
async fn weights(app: &App, owner: &OwnerId, row: &Arc<SamplerRow>) -> Result<SampleSource> {
    match &row.source {
        SamplerSource::Base => Ok(SampleSource::Base),
        SamplerSource::Snapshot(_) => Ok(SampleSource::Snapshot(row.id.clone())),
        SamplerSource::Checkpoint(path) => Ok(SampleSource::Checkpoint(app.readable(owner, path).await?.dir)),
    }
}
