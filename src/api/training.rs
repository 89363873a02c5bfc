//! The steps of a run: forward_backward, optim_step, unload (protocol §7.5, §7.6).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use prost::Message;
use tinderbox_client::proto;
use tinderbox_client::types::training::{ForwardBackwardRequest, ForwardRequest, OptimStepRequest, UnloadModelRequest};

use crate::command::{Command, Datum, Loss, RunCommand};
use crate::engine::handle::ModelInfo;
use crate::engine::handle::NOW;
use crate::error::{Error, Result};
use crate::futures::admission::Permit;
use crate::futures::complete::Completion;
use crate::futures::issue::{Key, Request};
use crate::futures::meaning;
use crate::ids::{ModelId, OwnerId, RequestId};
use crate::loss::custom::Program;
use crate::validate;

use super::auth::Owner;
use super::body::{JsonBody, NumberedBody, numbered, read_numbered, spend};
use super::error::ApiResult;
use super::headers::text;
use super::numbers;
use super::state::App;
use super::submit::{Numbered, Promise, promise};
use super::trace;

/// Messages of one protobuf body. Each is a struct in memory, even an empty one of two bytes.
const MAX_MESSAGES: usize = 1 << 21;

/// Protobuf from today's clients, JSON from those before 0.25.
pub async fn forward_backward(
    State(app): State<App>,
    Owner(owner): Owner,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Promise> {
    let content_type = text(&headers, header::CONTENT_TYPE).unwrap_or_default();
    if !content_type.contains("application/x-protobuf") {
        let (bytes, permit) = numbered(&app, &owner, &headers, body, app.limits().json_body_bytes).await?;
        let (request, permit) = read_numbered(&app, &owner, bytes, permit).await?;
        return submit_data(&app, owner, Source::Json(request), permit).await;
    }
    let (bytes, permit) = numbered(&app, &owner, &headers, body, app.limits().proto_body_bytes).await?;
    let whole = bytes.clone();
    match app.heavy(move || decode(bytes)).await? {
        Ok(message) => submit_data(&app, owner, Source::Proto(message), permit).await,
        Err(e) => {
            spend(&app, &owner, whole).await;
            Err(e.into())
        }
    }
}

pub(super) fn decode(bytes: Bytes) -> Result<proto::ForwardBackwardRequest> {
    let messages = numbers::messages_in(&bytes);
    if messages > MAX_MESSAGES {
        return Err(Error::user(format!(
            "the protobuf body holds {messages} datums, chunks, tensors and spans; the limit of one request is \
             {MAX_MESSAGES}"
        )));
    }
    proto::ForwardBackwardRequest::decode(bytes)
        .map_err(|e| Error::user(format!("the protobuf body cannot be decoded: {e}")))
}

/// The forward pass of clients before 0.25.
pub async fn forward(
    State(app): State<App>,
    Owner(owner): Owner,
    NumberedBody(r, permit): NumberedBody<ForwardRequest>,
) -> ApiResult<Promise> {
    submit_data(&app, owner, Source::Json(r.into()), permit).await
}

pub async fn optim_step(
    State(app): State<App>,
    Owner(owner): Owner,
    NumberedBody(r, permit): NumberedBody<OptimStepRequest>,
) -> ApiResult<Promise> {
    let n = app.numbered(owner, &r.model_id, r.seq_id, permit).await?;
    let params = validate::runs::adam(r.adam_params.as_ref(), r.optimizer_params.as_ref());
    let params = n.checked(&app, params)?;
    let meaning = meaning::of_request("optim_step", &r);
    n.issue(&app, meaning, RunCommand::OptimStep(params), Completion::OptimStep)
}

/// Takes effect at once, not in order: it has no `seq_id`.
pub async fn unload_model(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<UnloadModelRequest>,
) -> ApiResult<Promise> {
    let run = app.run(&owner, &ModelId(r.model_id)).await?;
    let model = run.row.id.clone();
    trace::on_run(&model, None);
    let command = Command::Run { owner: owner.clone(), model: model.clone(), seq: NOW, command: RunCommand::Unload };
    let key = Key::Unload { model: model.clone() };
    let completion = Completion::Unload { model: model.clone() };
    let request = Request { id: RequestId::random(), owner, key, meaning: 0, command, completion, permit: None };
    Ok(promise(app.futures().issue(request)?.id, Some(&model)))
}

pub(super) enum Source {
    Json(ForwardBackwardRequest),
    Proto(proto::ForwardBackwardRequest),
}

async fn submit_data(app: &App, owner: OwnerId, source: Source, permit: Permit) -> ApiResult<Promise> {
    let (model_id, seq_id) = match &source {
        Source::Json(r) => (r.model_id.clone(), r.seq_id),
        Source::Proto(m) => (m.model_id.clone(), u64::try_from(m.seq_id).ok()),
    };
    let n = app.numbered(owner, &model_id, seq_id, permit).await?;
    let (model, max_datums) = (n.run.model.clone(), app.limits().max_datums);
    let read = app.heavy(move || read(source)).await?;
    let read = n.checked(app, read)?;
    let custom = n.checked(app, custom(app, &n, &read.0).await)?;
    let checked = app.heavy(move || check(read, custom, &model, max_datums)).await?;
    let (data, loss, forward_only) = n.checked(app, checked)?;
    let meaning = meaning::of_data(&data, &loss, forward_only);
    n.issue(app, meaning, RunCommand::ForwardBackward { data, loss, forward_only }, Completion::ForwardBackward)
}

/// A request, and which of its datums carry provenance spans.
pub(super) type Read = (ForwardBackwardRequest, Vec<bool>);

pub(super) fn read(source: Source) -> Result<Read> {
    match source {
        Source::Json(r) => Ok((r, Vec::new())),
        Source::Proto(m) => {
            let spanned = m.data.iter().map(|d| !d.model_input_spans.is_empty() && !d.loss_fn_input_spans.is_empty());
            let spanned: Vec<bool> = spanned.collect();
            Ok((ForwardBackwardRequest::try_from(&m).map_err(|e| Error::user(e.to_string()))?, spanned))
        }
    }
}

/// The uploaded loss of a request that names one: a loss of the run's session and of no other.
async fn custom(app: &App, n: &Numbered, request: &ForwardBackwardRequest) -> Result<Option<Arc<Program>>> {
    let input = &request.forward_backward_input;
    match validate::loss::custom_id(&input.loss_fn, &input.loss_fn_config)? {
        Some(id) => app.custom_loss(&n.owner, &n.run.row.session, &id).await.map(Some),
        None => Ok(None),
    }
}

pub(super) fn check(
    (request, spanned): Read,
    custom: Option<Arc<Program>>,
    model: &ModelInfo,
    max_datums: usize,
) -> Result<(Vec<Datum>, Loss, bool)> {
    let input = request.forward_backward_input;
    let loss = match custom {
        Some(program) => Loss::Custom(program),
        None => validate::loss::parse(&input.loss_fn, &input.loss_fn_config)?,
    };
    let rules = validate::training::Rules { loss: &loss, model, max_datums };
    let data = validate::training::data(input.data, &spanned, rules)?;
    Ok((data, loss, request.forward_only))
}
