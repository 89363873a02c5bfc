//! The service itself: client flags, health, capabilities, keys, telemetry, error bodies (protocol ch. 1, 2, 4, 16).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_text::JsonList;
use super::lenient;

/// `POST /client/config` and `/client/dynamic_config`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClientConfigRequest {
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub sdk_version: String,
}

/// The static flags a server may set. All have defaults in the client and none may be `null`, so absent ones are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClientConfigResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pjwt_auth_enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_fwdbwd_chunks: Option<bool>,
    /// Datums per chunk; 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwdbwd_max_chunk_len: Option<u64>,
    /// Estimated bytes per chunk; 5 000 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwdbwd_max_chunk_bytes_count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwdbwd_dispatch_bytes_semaphore_size: Option<u64>,
    /// zstd request bodies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto_compress_fwdbwd: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_max_concurrent_requests: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_use_retrieve_futures: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_join_sampling_session: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_loss_server_side: Option<bool>,
}

/// Flags that clients fetch again from time to time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClientDynamicConfigResponse {
    /// Seconds; 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_interval_sec: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_cancel_enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_cancel_max_batch_size: Option<u64>,
}

/// `POST /auth/token`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AuthTokenResponse {
    pub jwt: String,
}

/// `GET /auth/apikey/me`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ApiKeyResponse {
    pub key_id: i64,
    pub name: String,
    pub note: String,
    pub details: ApiKeyDetails,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ApiKeyDetails {
    pub org_details: OrgDetails,
    pub user_details: UserDetails,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OrgDetails {
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UserDetails {
    pub email: String,
}

/// `GET /healthz`: `{"status": "ok"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HealthResponse {
    pub status: String,
}

/// `GET /get_server_capabilities`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GetServerCapabilitiesResponse {
    pub supported_models: Vec<SupportedModel>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SupportedModel {
    /// What users pass as `base_model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_context_length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampleable: Option<bool>,
}

/// `POST /telemetry`. Events are stored as they come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TelemetryRequest {
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<serde_json::Value>))]
    pub events: JsonList,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub platform: String,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub sdk_version: String,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub session_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_uuid: Option<String>,
}

/// The literal `{"status": "accepted"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename = "accepted")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TelemetryResponse {}

/// The body of every error status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// What was wrong. Other servers also send lists.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub detail: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_flags_are_left_out() {
        assert_eq!(serde_json::to_string(&ClientConfigResponse::default()).unwrap(), "{}");
        let c = ClientConfigResponse { parallel_fwdbwd_chunks: Some(true), ..Default::default() };
        assert_eq!(serde_json::to_string(&c).unwrap(), r#"{"parallel_fwdbwd_chunks":true}"#);
    }

    #[test]
    fn telemetry_is_accepted_literally() {
        assert_eq!(serde_json::to_string(&TelemetryResponse {}).unwrap(), r#"{"status":"accepted"}"#);
    }
}
