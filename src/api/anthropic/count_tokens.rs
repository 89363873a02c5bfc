//! `POST /v1/messages/count_tokens`.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::api::auth::Owner;
use crate::api::body::WorkBody;
use crate::api::error::ApiResult;
use crate::api::state::App;

use super::request::PromptRequest;

/// The length of the prompt that these messages make.
pub async fn count(
    State(app): State<App>,
    Owner(owner): Owner,
    WorkBody(r, _permit): WorkBody<PromptRequest>,
) -> ApiResult<Json<Value>> {
    let target = app.target(&owner, &r.model).await?;
    app.futures().pace().admit(&owner, 1, 0)?;
    let chat = app.chat(&target.model).await?;
    let (name, context) = (target.model.name, target.model.max_context_length);
    let (_, prompt) = app.heavy(move || chat.prompt(&r.conversation(&name)?, context)).await??;
    Ok(Json(json!({"input_tokens": prompt.len()})))
}
