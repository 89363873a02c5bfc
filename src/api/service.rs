//! The service itself: flags for clients, health, served models, telemetry (protocol ch. 4, 16, §7.2).

use axum::Json;
use axum::extract::State;
use tinderbox_client::types::service::{
    ClientConfigRequest, ClientConfigResponse, ClientDynamicConfigResponse, GetServerCapabilitiesResponse,
    HealthResponse, SupportedModel,
};

use crate::validate::runs::FULL_SUFFIX;

use super::body::JsonBody;
use super::state::App;

pub async fn healthz() -> Json<HealthResponse> {
    Json(HealthResponse { status: "ok".into() })
}

/// Flags that differ from a client's defaults, or must stay as they are.
pub async fn client_config(State(app): State<App>, _: JsonBody<ClientConfigRequest>) -> Json<ClientConfigResponse> {
    Json(ClientConfigResponse {
        pjwt_auth_enabled: Some(true),
        parallel_fwdbwd_chunks: Some(true),
        proto_compress_fwdbwd: Some(false),
        sample_use_retrieve_futures: Some(app.limits().bulk_polling),
        sample_join_sampling_session: Some(true),
        custom_loss_server_side: Some(true),
        ..ClientConfigResponse::default()
    })
}

pub async fn client_dynamic_config(_: JsonBody<ClientConfigRequest>) -> Json<ClientDynamicConfigResponse> {
    Json(ClientDynamicConfigResponse { sample_cancel_enabled: Some(true), ..ClientDynamicConfigResponse::default() })
}

/// Each served model, then each again as `NAME:full`, which trains every weight. Sampling takes the plain name.
pub async fn capabilities(State(app): State<App>) -> Json<GetServerCapabilitiesResponse> {
    let models = app.engine().models();
    let row = |suffix: &str, sampleable: bool| {
        let suffix = suffix.to_owned();
        models.iter().map(move |m| SupportedModel {
            model_name: Some(format!("{}{suffix}", m.name)),
            max_context_length: Some(m.max_context_length as u64),
            trainable: Some(true),
            sampleable: Some(sampleable),
        })
    };
    let supported_models = row("", true).chain(row(FULL_SUFFIX, false)).collect();
    Json(GetServerCapabilitiesResponse { supported_models })
}
