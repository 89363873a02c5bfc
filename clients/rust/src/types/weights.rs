//! Saving and loading a run's weights (protocol §7.7 to 7.10).

use serde::{Deserialize, Serialize};

use super::lenient::{self, Metadata};
use super::training::OptimizerConfig;

/// `POST /save_weights`: promise of [`SaveWeightsResponse`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SaveWeightsRequest {
    pub model_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = u64, required = true, minimum = 1))]
    pub seq_id: Option<u64>,
    /// The checkpoint's name, not a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 255, pattern = "^[A-Za-z0-9._-]+$"))]
    pub path: Option<String>,
    /// Absent = never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 3600, maximum = 315_360_000))]
    pub ttl_seconds: Option<i64>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub overwrite: bool,
    #[serde(default, deserialize_with = "lenient::metadata", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, serde_json::Value>>))]
    pub user_metadata: Option<Metadata>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SaveWeightsResponse {
    /// `tinker://RUN/weights/NAME`.
    pub path: String,
}

/// `POST /load_weights`: promise of [`LoadWeightsResponse`]. Either a new run (`session_id`, `model_seq_id`) or an
/// existing one (`model_id`, `seq_id`), never both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "load_weights")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoadWeightsRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_seq_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<u64>,
    /// New run only: another name of the checkpoint's base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    #[serde(default, deserialize_with = "lenient::metadata", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, serde_json::Value>>))]
    pub user_metadata: Option<Metadata>,
    /// New run only, and only without its checkpoint's optimiser.
    #[serde(default, deserialize_with = "lenient::object", skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
    pub path: String,
    /// Restore the optimiser's state too.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub optimizer: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_access_token: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "load_weights")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoadWeightsResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
}

/// `POST /save_weights_for_sampler`: promise of [`SaveWeightsForSamplerResponse`]. Either a named checkpoint (`path`) or
/// an ephemeral sampler (`sampling_session_seq_id`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights_for_sampler")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SaveWeightsForSamplerRequest {
    pub model_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = u64, required = true, minimum = 1))]
    pub seq_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_length = 255, pattern = "^[A-Za-z0-9._-]+$"))]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_seq_id: Option<u64>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub kind: SamplingClientKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 3600, maximum = 315_360_000))]
    pub ttl_seconds: Option<i64>,
    #[serde(default, deserialize_with = "lenient::metadata", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, serde_json::Value>>))]
    pub user_metadata: Option<Metadata>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SamplingClientKind {
    /// Samples from these very weights for ever.
    #[default]
    Snapshot,
    /// Moves on to the weights of later inflight saves.
    Inflight,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights_for_sampler")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SaveWeightsForSamplerResponse {
    /// `tinker://RUN/sampler_weights/NAME` of a named checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The ephemeral sampler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_id: Option<String>,
}

/// `POST /save_weights_external`: promise of [`SaveWeightsExternalResponse`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights_external")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SaveWeightsExternalRequest {
    pub model_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = u64, required = true, minimum = 1))]
    pub seq_id: Option<u64>,
    /// The checkpoint's name.
    #[cfg_attr(feature = "schema", schema(max_length = 255, pattern = "^[A-Za-z0-9._-]+$"))]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 3600, maximum = 315_360_000))]
    pub ttl_seconds: Option<i64>,
    /// At most 10 `age1…` or SSH public keys; every file is then encrypted for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_items = 10))]
    pub age_encryption_recipients: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights_external")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SaveWeightsExternalResponse {
    /// `tinker://RUN/external_weights/NAME`.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::lenient::parse_object;

    #[test]
    fn the_two_addressings_of_load() {
        let new: LoadWeightsRequest = parse_object(
            br#"{"session_id": "s", "model_seq_id": 1, "path": "tinker://r/weights/a", "optimizer": false}"#,
        )
        .unwrap();
        assert_eq!((new.model_seq_id, new.model_id), (Some(1), None));
        assert!(parse_object::<LoadWeightsRequest>(br#"{"path": 3, "optimizer": "yes"}"#).is_err());
        assert!(parse_object::<LoadWeightsRequest>(b"{}").is_err());
    }

    #[test]
    fn snapshot_is_the_default_kind() {
        let r: SaveWeightsForSamplerRequest =
            parse_object(br#"{"model_id": "m", "sampling_session_seq_id": 0, "kind": null}"#).unwrap();
        assert_eq!(r.kind, SamplingClientKind::Snapshot);
        assert_eq!(serde_json::to_value(&r).unwrap()["kind"], "snapshot");
    }
}
