//! Text in, text out, for the APIs that others invented: what OpenAI's and Anthropic's have in common (protocol ch. 17).

pub mod answer;
pub mod bearer;
pub mod chats;
pub mod choice;
pub mod error_shapes;
pub mod jobs;
pub mod messages;
pub mod settings;
pub mod sse;
pub mod target;
#[cfg(test)]
pub mod testing;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

use super::state::App;
use super::{anthropic, auth, openai};

/// The routes of both APIs, below `/v1` and below the hosted service's paths.
pub fn routes(app: &App) -> Router<App> {
    let openai = Router::new()
        .route("/models", get(openai::models::list))
        .route("/models/{*model}", get(openai::models::get))
        .route("/completions", post(openai::completions::create))
        .route("/chat/completions", post(openai::chat::create));
    let anthropic = Router::new()
        .route("/messages", post(anthropic::messages::create))
        .route("/messages/count_tokens", post(anthropic::count_tokens::count));
    Router::new()
        .nest("/v1", openai.clone().merge(anthropic.clone()))
        .nest("/oai/api/v1", openai)
        .nest("/anthropic/api/v1", anthropic)
        .route_layer(from_fn_with_state(app.clone(), auth::require_key))
        .route_layer(from_fn(bearer::as_key))
}
