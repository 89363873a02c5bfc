//! What an account took and how it goes: endpoints of this server's own, for runs, days and the moment.

use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};

/// Query of `GET /usage`; without a day, the last 31.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
pub struct UsageQuery {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// YYYY-MM-DD, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UsageResponse {
    /// Of all of `data`.
    pub total: UsageCounts,
    /// By day.
    pub data: Vec<UsageRow>,
    /// What is stored now: of the run asked for, else of the account.
    pub storage: StorageNow,
}

/// What was taken on one day for one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UsageRow {
    pub day: NaiveDate,
    /// Absent for storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The run that was trained, or whose weights were sampled from or stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Where there is no run: a sampler over a base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampler_id: Option<String>,
    pub base_model: String,
    #[serde(flatten)]
    pub counts: UsageCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UsageCounts {
    /// Of `forward`.
    pub forward_tokens: u64,
    /// Of `forward_backward`.
    pub training_tokens: u64,
    /// Prompt tokens that were run: once per request, whatever `num_samples` is.
    pub prefill_tokens: u64,
    /// Prompt tokens whose keys and values were there already: those of a request's further samples.
    pub cached_prefill_tokens: u64,
    pub sampled_tokens: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    pub storage_gigabyte_hours: f64,
    /// Time the device worked for it, shared with neighbours by tokens.
    pub device_seconds: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StorageNow {
    pub checkpoint_count: u64,
    pub size_bytes: u64,
    /// Of every kind, newest first, at most 1000.
    pub checkpoints: Vec<StoredCheckpoint>,
    /// Samplers over unnamed snapshots in open sessions: they are the server's to keep and take none of the account's
    /// disk.
    pub ephemeral_samplers: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StoredCheckpoint {
    pub tinker_path: String,
    pub size_bytes: u64,
    pub time: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
}

/// `GET /status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StatusResponse {
    pub server: ServerStatus,
    pub quotas: QuotaStatus,
    /// The asking account's unfinished requests.
    pub waiting_count: u64,
    /// The oldest of them, at most 100.
    pub waiting: Vec<WaitingRequest>,
    /// The account's latest failures, the last one first, at most 20.
    pub recent_errors: Vec<RecentError>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ServerStatus {
    /// Unfinished requests of all accounts.
    pub queue_depth: u64,
    /// Over the last minute.
    pub tokens_per_second: TokenRates,
    pub capacity: Capacity,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TokenRates {
    /// Trained on, or run forward only.
    pub training: f64,
    pub prefill: f64,
    pub sampled: f64,
}

/// What the server does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Capacity {
    /// Sequences that decode together.
    pub decode_sequences: u64,
    /// Tokens of a training pass.
    pub pass_tokens: u64,
}

/// `limit` is absent where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QuotaStatus {
    /// Share of device time against other accounts.
    pub weight: f64,
    pub max_runs: QuotaUse,
    pub pending_requests: QuotaUse,
    pub requests_per_minute: QuotaUse,
    pub tokens_per_minute: QuotaUse,
    pub disk_bytes: QuotaUse,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QuotaUse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Absent where nothing is counted without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WaitingRequest {
    pub request_id: String,
    /// In words: its number and its run or sampler.
    pub request: String,
    pub waiting_seconds: f64,
    /// Unfinished requests that came before it, of all accounts.
    pub requests_before: u64,
    pub queue_state: super::futures::QueueState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_state_reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RecentError {
    pub time: DateTime<Utc>,
    pub request_id: String,
    pub request: String,
    pub category: super::futures::RequestErrorCategory,
    pub error: String,
}
