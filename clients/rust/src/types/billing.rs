//! Usage events and stored bytes, as administrators ask for them (protocol §7.19). There is no price, so no cost field.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::lenient::Metadata;

/// Query of `GET /billing/usage/events`: RFC 3339 times, whole hours in UTC, at most 14 days apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
pub struct BillingUsageQuery {
    /// Inclusive; not in the future.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = String, required = true, example = "2026-01-02T00:00:00Z"))]
    pub starting_on: Option<String>,
    /// Exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = String, required = true, example = "2026-01-03T00:00:00Z"))]
    pub ending_before: Option<String>,
}

/// By hour, in an hour by falling token count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BillingUsageResponse {
    pub data: Vec<BillingUsageEvent>,
    /// Every session that `data` names.
    #[serde(default)]
    pub sessions: BTreeMap<String, BillingUsageSession>,
}

/// What one session took of one kind in one hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BillingUsageEvent {
    pub bucket_start: DateTime<Utc>,
    pub bucket_end: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    /// The account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Absent for storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    pub event_info: BillingEventInfo,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum BillingEventInfo {
    Training { token_count: u64 },
    SamplingPrefill { cached: bool, token_count: u64 },
    SamplingSample { token_count: u64 },
    Checkpoint { count: u64 },
    Storage { free: bool, gigabyte_hours: f64 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BillingUsageSession {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, String>>))]
    pub user_metadata: Option<Metadata>,
}

/// Query of `GET /billing/usage/checkpoints/current`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
pub struct CheckpointStorageQuery {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
}

/// Largest first; empty when nothing is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckpointStorageResponse {
    pub data: Vec<CheckpointStorageItem>,
}

/// The checkpoints of one project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckpointStorageItem {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// The account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org_user_urn: Option<String>,
    pub checkpoint_count: u64,
    pub size_bytes: u64,
    /// Of 10⁹ bytes.
    pub size_gigabytes: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_spelled_as_the_sdk_reads_it() {
        let event = BillingUsageEvent {
            bucket_start: "2026-07-13T10:00:00Z".parse().unwrap(),
            bucket_end: "2026-07-13T11:00:00Z".parse().unwrap(),
            base_model: Some("m".into()),
            user_id: None,
            session_id: None,
            project_id: None,
            event_info: BillingEventInfo::SamplingPrefill { cached: true, token_count: 7 },
        };
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"bucket_start":"2026-07-13T10:00:00Z","bucket_end":"2026-07-13T11:00:00Z","base_model":"m","event_info":{"type":"sampling_prefill","cached":true,"token_count":7}}"#
        );
        let storage = BillingEventInfo::Storage { free: false, gigabyte_hours: 0.5 };
        assert_eq!(serde_json::to_string(&storage).unwrap(), r#"{"type":"storage","free":false,"gigabyte_hours":0.5}"#);
    }
}
