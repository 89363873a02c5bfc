//! Promises: their ids, what a poll can answer, bulk polling, cancelling (protocol ch. 10).

use serde::{Deserialize, Serialize};

use super::lenient;

/// The answer of every endpoint that returns a promise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UntypedApiFuture {
    pub request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// On asample: one id per sequence of the coming result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_sequence_ids: Option<Vec<String>>,
}

/// `POST /retrieve_future`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RetrieveFutureRequest {
    pub request_id: String,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub allow_metadata_only: bool,
}

/// Status 408: not done yet, poll again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "try_again")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TryAgainResponse {
    pub request_id: String,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub queue_state: QueueState,
    /// Shown to the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_state_reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum QueueState {
    /// Running or normally queued.
    #[default]
    Active,
    PausedCapacity,
    PausedRateLimit,
}

/// Status 200 of a promise whose work failed. No result type has a field `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestFailedResponse {
    pub error: String,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub category: RequestErrorCategory,
}

/// Who has to act: whoever sent the request, or whoever runs the server (protocol §10.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum RequestErrorCategory {
    User,
    Server,
    #[default]
    #[serde(other)]
    Unknown,
}

/// `POST /retrieve_futures`: news of many samples of one sampler (protocol §10.7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RetrieveFuturesRequest {
    pub target: FuturesTarget,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub prev_cursor: i64,
    /// Seconds; absent = long poll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub retrieved_request_ids: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum FuturesTarget {
    SamplingSession {
        sampling_session_id: String,
        #[serde(default, deserialize_with = "lenient::null_default")]
        cloned_sampler_id: u64,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RetrieveFuturesResponse {
    pub completions: Vec<FutureCompletion>,
    pub cursor: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum FutureCompletion {
    Finished {
        request_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response_payload_uncompressed_size: Option<u64>,
    },
    Failed {
        request_id: String,
    },
}

/// `POST /cancel_future`. Unknown and finished ids succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CancelFutureRequest {
    pub request_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_spelled_as_clients_look_for_them() {
        let again = TryAgainResponse {
            request_id: "r".into(),
            queue_state: QueueState::PausedCapacity,
            queue_state_reason: None,
        };
        assert_eq!(
            serde_json::to_string(&again).unwrap(),
            r#"{"type":"try_again","request_id":"r","queue_state":"paused_capacity"}"#
        );
        let failed = RequestFailedResponse { error: "no".into(), category: RequestErrorCategory::User };
        assert_eq!(serde_json::to_string(&failed).unwrap(), r#"{"error":"no","category":"user"}"#);
    }

    #[test]
    fn strange_categories_are_unknown() {
        for json in
            [r#"{"error": "e", "category": "User"}"#, r#"{"error": "e", "category": null}"#, r#"{"error": "e"}"#]
        {
            assert_eq!(
                serde_json::from_str::<RequestFailedResponse>(json).unwrap().category,
                RequestErrorCategory::Unknown
            );
        }
    }
}
