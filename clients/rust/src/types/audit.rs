//! The audit log (protocol §7.19).

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The query of `GET /audit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
pub struct AuditQuery {
    /// `all`, `checkpoints`, `projects`, `teams` or `organizations`; here also `sessions` and `runs`.
    #[cfg_attr(feature = "schema", param(example = "all"))]
    pub event_type: String,
    /// `YYYY-MM-DD`; today when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
}

/// `GET /audit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AuditLogResponse {
    /// Oldest first.
    pub entries: Vec<AuditLogEntry>,
}

/// `event` is `RESOURCE_ACTION`. The three optional fields repeat what `event_details` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AuditLogEntry {
    pub timestamp: DateTime<Utc>,
    pub event: String,
    /// An object.
    #[serde(default)]
    pub event_details: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tinker_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
}
