//! The service itself: flags for clients, health, served models, telemetry (protocol ch. 4, 16, §7.2).

use axum::Json;
use axum::extract::State;
use axum::response::Redirect;
use tinderbox_client::types::service::{
    ClientConfigRequest, ClientConfigResponse, ClientDynamicConfigResponse, GetServerCapabilitiesResponse,
    HealthResponse, SupportedModel,
};

use crate::validate::runs::FULL_SUFFIX;

use super::body::JsonBody;
use super::state::App;

/// For whoever opens the server's address in a browser.
pub async fn root() -> Redirect {
    Redirect::to("/docs")
}

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

/// Each served model, then each again as `NAME:full`, which trains every weight. To sample from either is to sample from
/// the base model.
pub async fn capabilities(State(app): State<App>) -> Json<GetServerCapabilitiesResponse> {
    let models = app.engine().models();
    let row = |suffix: &str| {
        let suffix = suffix.to_owned();
        models.iter().map(move |m| SupportedModel {
            model_name: Some(format!("{}{suffix}", m.name)),
            max_context_length: Some(m.max_context_length as u64),
            trainable: Some(true),
            sampleable: Some(true),
        })
    };
    let supported_models = row("").chain(row(FULL_SUFFIX)).collect();
    Json(GetServerCapabilitiesResponse { supported_models })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use tinderbox_client::types::sampling::CreateSamplingSessionRequest;
    use tower::ServiceExt;

    use super::*;
    use crate::api::testing::{self, owner};
    use crate::api::{auth::Owner, router, sampling};

    #[tokio::test]
    async fn the_bare_address_leads_to_the_documentation() {
        let (app, _engine) = testing::app().await;
        let answer = router(app).oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(
            (answer.status(), &answer.headers()["location"]),
            (StatusCode::SEE_OTHER, &"/docs".parse().unwrap())
        );
    }

    #[tokio::test]
    async fn what_is_listed_as_sampleable_gives_a_sampler() {
        let (app, _engine) = testing::app().await;
        let session = testing::session(&app, chrono::Utc::now()).await.id;
        let models = capabilities(State(app.clone())).await.0.supported_models;
        let names: Vec<_> =
            models.iter().filter(|m| m.sampleable == Some(true)).map(|m| m.model_name.clone()).collect();
        assert_eq!(names, [Some("tiny".into()), Some("tiny:full".into())]);
        for (i, base_model) in names.into_iter().enumerate() {
            let request = CreateSamplingSessionRequest {
                session_id: session.0.clone(),
                sampling_session_seq_id: i as u64,
                base_model,
                model_path: None,
            };
            let made = sampling::create_sampling_session(State(app.clone()), Owner(owner()), JsonBody(request)).await;
            assert!(made.is_ok(), "{i}");
        }
    }
}
