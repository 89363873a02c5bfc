//! Tag `service`: settings for clients, health, models, telemetry.

use serde_json::json;
use tinderbox_client::types::service::{
    ClientConfigRequest, ClientConfigResponse, ClientDynamicConfigResponse, GetServerCapabilitiesResponse,
    HealthResponse, TelemetryRequest, TelemetryResponse,
};

use super::examples::{MODEL, SESSION};
use super::operation::{Operation, get, post};

pub fn operations() -> Vec<Operation> {
    let version = json!({ "sdk_version": "0.38.0" });
    vec![
        get("/", "root")
            .says("Where to begin", "Leads a browser to the page that shows this document.")
            .open()
            .answers_blank(303, "The page is at `/docs`."),
        get("/api/v1/healthz", "healthz")
            .says("Is the server up?", "Needs no key. For load balancers and scripts that wait for the server.")
            .open()
            .gives::<HealthResponse>("It is.", json!({ "status": "ok" })),
        post("/api/v1/client/config", "client_config")
            .says(
                "Settings a client asks for when it starts",
                "The first request of every `ServiceClient` and of the `tinker` command. Settings that are absent have \
                 the client's own defaults.",
            )
            .takes::<ClientConfigRequest>(version.clone())
            .gives::<ClientConfigResponse>(
                "What differs from the defaults, or must stay as it is.",
                json!({ "pjwt_auth_enabled": false, "parallel_fwdbwd_chunks": true, "sample_join_sampling_session": true }),
            ),
        post("/api/v1/client/dynamic_config", "client_dynamic_config")
            .says(
                "Settings a client asks for again from time to time",
                "Sent by every `ServiceClient` when it starts and every few minutes after that.",
            )
            .takes::<ClientConfigRequest>(version)
            .gives::<ClientDynamicConfigResponse>("What differs from the defaults.", json!({})),
        get("/api/v1/get_server_capabilities", "get_server_capabilities")
            .says(
                "The models served here",
                "`ServiceClient.get_server_capabilities()`, `tinker model list`, `tinker auth status`. Each model is \
                 listed once under its name, for adapters and samples, and once as `NAME:full`, which trains every \
                 weight; samples from either come from the base model.",
            )
            .gives::<GetServerCapabilitiesResponse>(
                "One row for each name that `base_model` may have.",
                json!({ "supported_models": [
                    { "model_name": MODEL, "max_context_length": 40960, "trainable": true, "sampleable": true },
                    { "model_name": format!("{MODEL}:full"), "max_context_length": 40960, "trainable": true, "sampleable": true },
                ] }),
            ),
        post("/api/v1/telemetry", "telemetry")
            .says(
                "A client's report of faults",
                "Sent by every client in the background unless `TINKER_TELEMETRY=0`. The server keeps the events as \
                 they come and sends them nowhere.",
            )
            .takes::<TelemetryRequest>(json!({
                "session_id": SESSION, "platform": "Linux", "sdk_version": "0.38.0",
                "events": [{ "event": "SESSION_START", "severity": "INFO" }],
            }))
            .gives::<TelemetryResponse>("The events are kept.", json!({ "status": "accepted" })),
    ]
}
