//! `GET /v1/models`: what a request's `model` may name.

use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::api::auth::Owner;
use crate::api::error::ApiResult;
use crate::api::state::App;
use crate::engine::handle::ModelInfo;

/// The base models. Checkpoints are models too, but listed by the Tinker API.
pub async fn list(State(app): State<App>) -> Json<Value> {
    let models: Vec<Value> = app.engine().models().iter().map(|m| model(&m.name, m)).collect();
    Json(json!({"object": "list", "data": models}))
}

/// Any model that the caller may sample from, checkpoints and samplers among them.
pub async fn get(State(app): State<App>, Owner(owner): Owner, Path(name): Path<String>) -> ApiResult<Json<Value>> {
    let target = app.target(&owner, &name).await?;
    Ok(Json(model(&name, &target.model)))
}

/// `created` is when the base model's directory was written, in seconds since 1970.
fn model(id: &str, base: &ModelInfo) -> Value {
    let written = std::fs::metadata(&base.dir).and_then(|m| m.modified()).ok();
    let created = written.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs());
    json!({"id": id, "object": "model", "created": created, "owned_by": "tinderbox", "root": base.name,
        "max_model_len": base.max_context_length})
}
