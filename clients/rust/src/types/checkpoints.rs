//! Rows and lists of runs and checkpoints, and what the REST calls on them take (protocol §6.2, §7.14 to 7.16, ch. 13).

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::lenient::{self, Metadata, default_value};

default_value!(runs_limit: i64 = 20);
default_value!(checkpoints_limit: i64 = 100);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Checkpoint {
    /// With the kind: `weights/NAME`.
    pub checkpoint_id: String,
    pub checkpoint_type: CheckpointType,
    pub time: DateTime<Utc>,
    pub tinker_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    #[serde(default)]
    pub public: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, String>>))]
    pub user_metadata: Option<Metadata>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// From SDK 0.39 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CheckpointType {
    Training,
    Sampler,
    /// Unknown to SDKs up to 0.27.
    External,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TrainingRun {
    pub training_run_id: String,
    pub base_model: String,
    pub model_owner: String,
    pub is_lora: bool,
    #[serde(default)]
    pub corrupted: bool,
    /// Why it is corrupted. Not in the Tinker protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<RunFault>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<i64>,
    /// Why the run cannot be used now although it is there: its base model is not served. Left out when it can. Not
    /// known to the SDK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    pub last_request_time: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<Checkpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sampler_checkpoint: Option<Checkpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, String>>))]
    pub user_metadata: Option<Metadata>,
}

/// Which request of a run had numbers that were not finite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunFault {
    pub seq_id: u64,
    /// The first datum of the request that is to blame.
    pub datum: usize,
    pub reason: String,
}

/// `POST /training_runs/{run_id}/rollback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RollbackResponse {
    pub training_run_id: String,
    /// Weights and optimiser are what they were before the request with this number.
    pub before_seq_id: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cursor {
    pub offset: i64,
    pub limit: i64,
    pub total_count: i64,
}

/// Query of `GET /training_runs` and `GET /sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
pub struct RunsQuery {
    #[serde(default = "runs_limit::value", deserialize_with = "runs_limit::or_null")]
    #[cfg_attr(feature = "schema", param(minimum = 0, maximum = 1000, default = 20))]
    pub limit: i64,
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", param(minimum = 0, default = 0))]
    pub offset: i64,
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(inline))]
    pub access_scope: AccessScope,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
}

impl Default for RunsQuery {
    fn default() -> Self {
        Self { limit: runs_limit::value(), offset: 0, access_scope: AccessScope::Owned, project_id: None }
    }
}

/// Query of `GET /checkpoints`. Clients take a page shorter than asked for the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
pub struct CheckpointsQuery {
    #[serde(default = "checkpoints_limit::value", deserialize_with = "checkpoints_limit::or_null")]
    #[cfg_attr(feature = "schema", param(minimum = 0, maximum = 1000, default = 100))]
    pub limit: i64,
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", param(minimum = 0, default = 0))]
    pub offset: i64,
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(inline))]
    pub access_scope: AccessScope,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
}

impl Default for CheckpointsQuery {
    fn default() -> Self {
        Self { limit: checkpoints_limit::value(), offset: 0, access_scope: AccessScope::Owned, project_id: None }
    }
}

/// Query of `GET /training_runs/{run_id}` and `GET /sessions/{session_id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
pub struct ScopeQuery {
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(inline))]
    pub access_scope: AccessScope,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum AccessScope {
    #[default]
    Owned,
    /// Also what others have published.
    Accessible,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TrainingRunsResponse {
    pub training_runs: Vec<TrainingRun>,
    pub cursor: Cursor,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckpointsListResponse {
    pub checkpoints: Vec<Checkpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

/// `PUT …/ttl`: seconds from now; an explicit `null` (`Some(None)`) removes the expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SetTtlRequest {
    #[serde(default, deserialize_with = "lenient::present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<i64>, required = true, minimum = 3600, maximum = 315_360_000))]
    pub ttl_seconds: Option<Option<i64>>,
}

/// `GET …/external_weights_urls`: absolute URLs by relative file name, good without any header until `expires`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExternalWeightsUrlsResponse {
    pub urls: BTreeMap<String, String>,
    pub expires: DateTime<Utc>,
}

/// `POST /weights_info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WeightsInfoRequest {
    pub tinker_path: String,
}

/// A checkpoint's true numbers: old clients create the new run from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WeightsInfoResponse {
    pub base_model: String,
    pub is_lora: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_unembed: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_mlp: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_attn: Option<bool>,
    #[serde(default)]
    pub optimizer_config: super::training::OptimizerConfig,
}

/// `POST /copy_weights`, into a project or into a session's slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CopyWeightsRequest {
    pub source_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_project_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_seq_id: Option<u64>,
    /// Another account's, as the header `X-Tinker-Weights-Access-Token` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_access_token: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CopyWeightsResponse {
    pub tinker_path: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_null_removes_and_absent_is_told_apart() {
        let ttl = |json: &str| serde_json::from_str::<SetTtlRequest>(json).unwrap().ttl_seconds;
        assert_eq!(ttl(r#"{"ttl_seconds": null}"#), Some(None));
        assert_eq!(ttl(r#"{"ttl_seconds": 3600}"#), Some(Some(3600)));
        assert_eq!(ttl("{}"), None);
        assert_eq!(
            serde_json::to_string(&SetTtlRequest { ttl_seconds: Some(None) }).unwrap(),
            r#"{"ttl_seconds":null}"#
        );
    }

    #[test]
    fn times_carry_an_offset() {
        let row = Checkpoint {
            checkpoint_id: "weights/a".into(),
            checkpoint_type: CheckpointType::Training,
            time: "2026-01-02T03:04:05.678901+00:00".parse().unwrap(),
            tinker_path: "tinker://r/weights/a".into(),
            size_bytes: None,
            public: false,
            user_metadata: None,
            expires_at: None,
            base_model: None,
        };
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"checkpoint_id":"weights/a","checkpoint_type":"training","time":"2026-01-02T03:04:05.678901Z","tinker_path":"tinker://r/weights/a","public":false}"#
        );
    }

    #[test]
    fn queries_have_the_protocols_defaults() {
        let q: RunsQuery = serde_json::from_str("{}").unwrap();
        assert_eq!((q.limit, q.offset, q.access_scope), (20, 0, AccessScope::Owned));
        assert_eq!(serde_json::from_str::<CheckpointsQuery>("{}").unwrap().limit, 100);
    }
}
