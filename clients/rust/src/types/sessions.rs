//! Sessions: create, keep alive, finish, look up (protocol ch. 3 and §7.17).

use serde::{Deserialize, Serialize};

use super::lenient::{self, Metadata};

/// `POST /create_session`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_session")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateSessionRequest {
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub tags: Vec<String>,
    #[serde(default, deserialize_with = "lenient::metadata", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, serde_json::Value>>))]
    pub user_metadata: Option<Metadata>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub sdk_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// The messages are logged by the client, each at its level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_session")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateSessionResponse {
    pub session_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// `POST /session_heartbeat`, every 10 s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "session_heartbeat")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionHeartbeatRequest {
    pub session_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "session_heartbeat")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionHeartbeatResponse {}

/// `POST /sessions/{session_id}/finish`, whose body may be empty. The first reason wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FinishSessionRequest {
    /// Success, when it is absent. Clients send it as `{"type": "success"}`; the word alone will do.
    #[serde(default, serialize_with = "typed::serialize", deserialize_with = "typed::or_word")]
    #[cfg_attr(feature = "schema", schema(value_type = typed::GivenFinishReason))]
    pub reason: FinishReason,
    /// Sent as an explicit `null` when there is none.
    #[serde(default)]
    pub detail: Option<String>,
}

/// How a client's session ended, as searches spell it; a session itself says `{"type": "success"}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum FinishReason {
    #[default]
    Success,
    Errored,
    Interrupted,
}

impl FinishReason {
    /// The word that stands for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Errored => "errored",
            Self::Interrupted => "interrupted",
        }
    }

    /// The reason a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Success, Self::Errored, Self::Interrupted].into_iter().find(|reason| reason.word() == word)
    }
}

/// A [`FinishReason`] as `{"type": "success"}`.
pub(super) mod typed {
    use super::FinishReason;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub struct TypedFinishReason {
        #[serde(rename = "type")]
        reason: FinishReason,
    }

    /// As people may write it too.
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "reason is success, errored or interrupted, as {\"type\": \"success\"} or the word alone"
    )]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum GivenFinishReason {
        Typed(TypedFinishReason),
        Word(FinishReason),
    }

    pub fn serialize<S: Serializer>(reason: &FinishReason, serializer: S) -> Result<S::Ok, S::Error> {
        TypedFinishReason { reason: *reason }.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FinishReason, D::Error> {
        TypedFinishReason::deserialize(deserializer).map(|typed| typed.reason)
    }

    pub fn or_word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FinishReason, D::Error> {
        Ok(match Option::<GivenFinishReason>::deserialize(deserializer)? {
            Some(GivenFinishReason::Typed(typed)) => typed.reason,
            Some(GivenFinishReason::Word(reason)) => reason,
            None => FinishReason::default(),
        })
    }
}

/// `GET /sessions/{session_id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GetSessionResponse {
    pub training_run_ids: Vec<String>,
    pub sampler_ids: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, String>>))]
    pub user_metadata: Option<Metadata>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// `GET /sessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ListSessionsResponse {
    pub sessions: Vec<String>,
}

/// `PUT /sessions/{session_id}/project`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AssignProjectRequest {
    pub project_id: String,
}

/// `GET /sessions/{session_id}/trace_export`: asked again until it is no longer pending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TraceExportResponse {
    pub status: TraceExportStatus,
    /// Of the file, when it is ready; good without any header for about an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TraceExportStatus {
    Pending,
    Ready,
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sdk_session_request() {
        let r: CreateSessionRequest =
            serde_json::from_str(r#"{"tags":[],"user_metadata":{},"sdk_version":"0.38.0","type":"create_session"}"#)
                .unwrap();
        assert_eq!(r.sdk_version, "0.38.0");
        assert_eq!(r.user_metadata, Some(Metadata::new()));
    }

    #[test]
    fn finish_keeps_the_explicit_null() {
        let r = FinishSessionRequest { reason: FinishReason::Success, detail: None };
        let json = r#"{"reason":{"type":"success"},"detail":null}"#;
        assert_eq!(serde_json::to_string(&r).unwrap(), json);
        assert_eq!(serde_json::from_str::<FinishSessionRequest>(json).unwrap(), r);
    }

    #[test]
    fn a_reason_is_typed_or_a_word_or_absent() {
        let reason = |json: &str| serde_json::from_str::<FinishSessionRequest>(json).map(|r| r.reason);
        for json in ["{}", r#"{"reason":null}"#, r#"{"reason":"success"}"#] {
            assert_eq!(reason(json).unwrap(), FinishReason::Success, "{json}");
        }
        for json in [r#"{"reason":"errored"}"#, r#"{"reason":{"type":"errored"}}"#] {
            assert_eq!(reason(json).unwrap(), FinishReason::Errored, "{json}");
        }
        for json in [r#"{"reason":"done"}"#, r#"{"reason":{"type":"done"}}"#, r#"{"reason":3}"#] {
            let message = reason(json).unwrap_err().to_string();
            assert!(message.starts_with("reason is success, errored or interrupted, as {"), "{message}");
        }
    }

    #[test]
    fn heartbeat_answer() {
        assert_eq!(serde_json::to_string(&SessionHeartbeatResponse {}).unwrap(), r#"{"type":"session_heartbeat"}"#);
    }
}
