//! Uploading an adapter that was trained elsewhere: announce its files, send each to its URL, finish.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::lenient::{self, Metadata};

/// `POST /external_weights_upload_start`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExternalWeightsUploadStartRequest {
    /// `adapter_config.json` and `adapter_model.safetensors`.
    pub files: Vec<UploadFile>,
    /// The checkpoint's name; "uploaded".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Absent: the one that `adapter_config.json` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    /// Of the checkpoint, from the finish on; absent = never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 3600, maximum = 315_360_000))]
    pub ttl_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, serde_json::Value>>))]
    #[serde(default, deserialize_with = "lenient::metadata", skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Metadata>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UploadFile {
    pub name: String,
    pub size_bytes: u64,
}

/// `PUT` each file to its URL before `expires`; no header is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExternalWeightsUploadStartResponse {
    pub upload_id: String,
    pub urls: BTreeMap<String, String>,
    pub expires: DateTime<Utc>,
}

/// `POST /external_weights_upload_finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExternalWeightsUploadFinishRequest {
    pub upload_id: String,
}

/// `tinker://RUN/weights/NAME`: to sample from, to start runs from, to export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExternalWeightsUploadFinishResponse {
    pub tinker_path: String,
}
