//! The HTTP side: every route on one line, below `/api/v1` (protocol ch. 6); `inference` adds what others invented.

mod access;
mod account;
mod answers;
mod anthropic;
mod archive;
mod arrival;
mod audit;
mod auth;
mod billing;
mod body;
mod checkpoints;
mod content;
mod copy;
mod create;
mod custom_loss;
mod downloads;
mod ending;
mod error;
mod exports;
mod futures;
#[cfg(fuzzing)]
pub mod fuzzing;
mod headers;
mod held;
mod inference;
mod keys;
mod known;
mod leftover;
pub mod links;
mod load;
mod numbers;
mod openai;
pub mod openapi;
mod origin;
mod query;
mod quota;
mod range;
mod reading;
mod sampling;
mod save;
mod search;
mod sequences;
mod service;
mod sessions;
pub mod state;
mod status;
mod structure;
mod submit;
mod telemetry;
#[cfg(test)]
mod testing;
mod timeline;
mod tokens;
mod trace;
mod training;
mod training_runs;
mod transfers;
mod unzstd;
mod uploads;
mod usage;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use tower_http::catch_panic::CatchPanicLayer;

use error::ApiError;
use state::App;

/// All routes. Everything but `open` wants an API key. Each is described in `openapi/` (a test sees to it).
pub fn router(app: App) -> Router {
    let keyed = Router::new()
        .route("/client/config", post(service::client_config))
        .route("/auth/token", post(account::token))
        .route("/auth/apikey/me", get(account::me).delete(account::delete_me))
        .route("/audit", get(audit::log))
        .route("/client/dynamic_config", post(service::client_dynamic_config))
        .route("/get_server_capabilities", get(service::capabilities))
        .route("/telemetry", post(telemetry::telemetry))
        .route("/create_session", post(sessions::create))
        .route("/session_heartbeat", post(sessions::heartbeat))
        .route("/sessions", get(sessions::list))
        .route("/sessions/search", post(search::sessions))
        .route("/sessions/{session_id}", get(sessions::get))
        .route("/sessions/{session_id}/finish", post(sessions::finish))
        .route("/sessions/{session_id}/project", put(sessions::set_project))
        .route("/sessions/{session_id}/trace_export", get(exports::trace_export))
        .route("/create_model", post(create::create_model))
        .route("/get_info", post(create::get_info))
        .route("/create_custom_loss", post(custom_loss::create_custom_loss))
        .route("/forward_backward", post(training::forward_backward))
        .route("/forward", post(training::forward))
        .route("/optim_step", post(training::optim_step))
        .route("/unload_model", post(training::unload_model))
        .route("/save_weights", post(save::save_weights))
        .route("/load_weights", post(load::load_weights))
        .route("/save_weights_for_sampler", post(save::save_weights_for_sampler))
        .route("/save_weights_external", post(save::save_weights_external))
        .route("/weights_info", post(load::weights_info))
        .route("/copy_weights", post(copy::copy_weights))
        .route("/external_weights_upload_start", post(uploads::start))
        .route("/external_weights_upload_finish", post(uploads::finish))
        .route("/create_sampling_session", post(sampling::create_sampling_session))
        .route("/join_sampling_session", post(sampling::join_sampling_session))
        .route("/samplers/{sampler_id}", get(sampling::get_sampler))
        .route("/sequences/{sequence_id}", get(sequences::get))
        .route("/asample", post(sampling::asample))
        .route("/retrieve_future", post(futures::retrieve))
        .route("/retrieve_futures", post(futures::retrieve_many))
        .route("/cancel_future", post(futures::cancel))
        .route("/training_runs", get(training_runs::list))
        .nest("/training_runs/{run_id}", training_run())
        .route("/models/{run_id}/checkpoints", get(checkpoints::list_of_run))
        .route("/checkpoints", get(checkpoints::list))
        .route("/checkpoints/search", post(search::checkpoints))
        .route("/billing/usage/events", get(billing::events))
        .route("/billing/usage/checkpoints/current", get(billing::current_storage))
        .route("/usage", get(usage::usage))
        .route("/status", get(status::status))
        .route_layer(from_fn_with_state(app.clone(), auth::require_key));
    let open = Router::new()
        .route("/healthz", get(service::healthz))
        .route("/download/{token}/{file}", get(downloads::download))
        .route("/upload/{token}/{file}", put(uploads::put))
        .route("/export/{token}/{file}", get(exports::download));
    Router::new()
        .route("/", get(service::root))
        .nest("/api/v1", keyed.merge(open))
        .merge(inference::routes(&app))
        .merge(openapi::routes())
        .fallback(error::unknown_route)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(from_fn(error::in_one_shape))
        .layer(from_fn_with_state(app.clone(), durable))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn(inference::error_shapes::in_their_shape))
        .layer(from_fn(leftover::read))
        .layer(from_fn(trace::trace))
        .with_state(app)
}

/// With strict durability nothing is answered before everything that was taken survives a power cut.
async fn durable(State(app): State<App>, request: Request, next: Next) -> Result<Response, ApiError> {
    let changes = request.method() == Method::POST;
    let response = next.run(request).await;
    if changes {
        app.futures().durable().await?;
    }
    Ok(response)
}

/// Of one training run.
fn training_run() -> Router<App> {
    Router::new()
        .route("/", get(training_runs::get))
        .route("/rollback", post(training_runs::roll_back))
        .route("/checkpoints", get(checkpoints::list_of_run))
        .nest("/checkpoints/{kind}/{name}", checkpoint())
}

/// Of one checkpoint, below its run, kind and name.
fn checkpoint() -> Router<App> {
    Router::new()
        .route("/", delete(checkpoints::delete))
        .route("/publish", post(checkpoints::publish).delete(checkpoints::unpublish))
        .route("/ttl", put(checkpoints::set_ttl))
        .route("/external_weights_urls", get(downloads::external_weights_urls))
        .route("/archive", get(downloads::archive_link))
}
