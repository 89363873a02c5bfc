//! Searching sessions (protocol §7.18) and checkpoints. Pages are newest first and follow one another by a cursor.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::checkpoints::{Checkpoint, CheckpointType};
use super::lenient::{self, Metadata, default_value};
use super::sessions::{FinishReason, typed};

default_value!(search_limit: i64 = 50);

/// `POST /sessions/search`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionSearchRequest {
    /// With `display_name`: a session that matches either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_ids: Option<Vec<String>>,
    /// Every pair must hold exactly.
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, String>))]
    pub user_metadata: Metadata,
    /// Every word must occur in the name, in whatever case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub owner: SearchOwner,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statuses: Option<Vec<SessionStatusQuery>>,
    /// 1 to 200.
    #[serde(default = "search_limit::value", deserialize_with = "search_limit::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 200, default = 50))]
    pub limit: i64,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<SessionSearchCursor>,
}

impl Default for SessionSearchRequest {
    fn default() -> Self {
        Self {
            session_id: None,
            project_ids: None,
            user_metadata: Metadata::new(),
            display_name: None,
            owner: SearchOwner::Own,
            statuses: None,
            limit: search_limit::value(),
            cursor: None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SearchOwner {
    #[default]
    Own,
    /// Everyone's that the caller may see.
    Accessible,
    /// 1 to 10.
    User { owner_urns: Vec<String> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SessionStatusQuery {
    Active,
    Cancelled,
    Failed,
    ClientFinished {
        /// Absent = any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasons: Option<Vec<FinishReason>>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionSearchCursor {
    pub last_created_at: DateTime<Utc>,
    pub last_session_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionSearchResponse {
    pub sessions: Vec<SessionSummary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<SessionSearchCursor>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionSummary {
    pub session_id: String,
    pub created_at: DateTime<Utc>,
    pub owner: String,
    /// "" for a session without a project.
    pub project_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    pub checkpoints_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, String>>))]
    pub user_metadata: Option<Metadata>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_storage_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SessionStatus {
    Active,
    /// Ended by the server.
    Cancelled {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    ClientFinished {
        #[serde(with = "typed")]
        #[cfg_attr(feature = "schema", schema(value_type = typed::TypedFinishReason))]
        reason: FinishReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// Of other servers: a failed request ends no session here.
    Failed {
        category: String,
        message: String,
        reason: Value,
    },
}

/// `POST /checkpoints/search`. Absent = whatever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckpointSearchRequest {
    /// Every word must occur in the checkpoint's name, in whatever case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_run_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_types: Option<Vec<CheckpointType>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_ids: Option<Vec<String>>,
    /// Every pair must hold exactly.
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, String>))]
    pub user_metadata: Metadata,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub owner: SearchOwner,
    /// 1 to 200.
    #[serde(default = "search_limit::value", deserialize_with = "search_limit::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 200, default = 50))]
    pub limit: i64,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<CheckpointSearchCursor>,
}

impl Default for CheckpointSearchRequest {
    fn default() -> Self {
        Self {
            name: None,
            training_run_id: None,
            base_model: None,
            checkpoint_types: None,
            project_ids: None,
            user_metadata: Metadata::new(),
            owner: SearchOwner::Own,
            limit: search_limit::value(),
            cursor: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckpointSearchCursor {
    pub last_time: DateTime<Utc>,
    pub last_tinker_path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckpointSearchResponse {
    pub checkpoints: Vec<Checkpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<CheckpointSearchCursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_as_the_sdk_sends_it() {
        let json = r#"{"user_metadata":{"k":"v"},"owner":{"type":"own"},"statuses":[{"type":"active"},
            {"type":"client_finished","reasons":["errored"]}],"limit":2,
            "cursor":{"last_created_at":"2026-01-02T03:04:05+00:00","last_session_id":"s"}}"#;
        let r: SessionSearchRequest = serde_json::from_str(json).unwrap();
        let errored = SessionStatusQuery::ClientFinished { reasons: Some(vec![FinishReason::Errored]) };
        assert_eq!(r.statuses.unwrap(), [SessionStatusQuery::Active, errored]);
        assert_eq!((r.limit, r.cursor.unwrap().last_session_id.as_str()), (2, "s"));
        assert_eq!(serde_json::from_str::<SessionSearchRequest>("{}").unwrap(), SessionSearchRequest::default());
    }

    #[test]
    fn statuses_are_told_by_their_type() {
        let finished = SessionStatus::ClientFinished { reason: FinishReason::Success, detail: None };
        assert_eq!(
            serde_json::to_string(&finished).unwrap(),
            r#"{"type":"client_finished","reason":{"type":"success"}}"#
        );
        assert_eq!(serde_json::to_string(&SessionStatus::Active).unwrap(), r#"{"type":"active"}"#);
    }
}
