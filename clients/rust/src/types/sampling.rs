//! Samplers and samples (protocol §7.11 to 7.13 and §8.3).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::items::Items;
use super::lenient::{self, default_value};
use super::model_input::ModelInput;
use super::tensor_data::TensorData;

default_value!(num_samples: i64 = 1);
default_value!(temperature: f64 = 1.0);
default_value!(top_k: i64 = -1);
default_value!(top_p: f64 = 1.0);

/// `POST /create_sampling_session`: the answer is the result. A path decides the weights when both are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_sampling_session")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateSamplingSessionRequest {
    pub session_id: String,
    /// Slot in the session, from 0; shared with ephemeral sampler saves.
    pub sampling_session_seq_id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_sampling_session")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateSamplingSessionResponse {
    pub sampling_session_id: String,
}

/// `POST /join_sampling_session`: a number for a client rebuilt in another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "join_sampling_session")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct JoinSamplingSessionRequest {
    pub sampling_session_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "join_sampling_session")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct JoinSamplingSessionResponse {
    /// From 1, unique in the sampler.
    pub client_counter: u64,
}

/// `GET /samplers/{sampler_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GetSamplerResponse {
    pub sampler_id: String,
    pub base_model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
}

/// `GET /sequences/{sequence_id}`, an addition to the protocol: a finished sequence by one of `sample_sequence_ids`, for
/// as long as its request's result is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GetSequenceResponse {
    pub sequence_id: String,
    pub sampler_id: String,
    pub base_model: String,
    /// The run whose weights the sampler reads, when it was made by a save without a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_run_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
    pub stop_reason: StopReason,
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// For each token the `seq_id` of the save whose weights it was drawn from; 0 for base models and checkpoints.
    pub weight_versions: Vec<u64>,
}

/// `POST /asample`: promise (with `sample_sequence_ids`) of [`SampleResponse`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "sample")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampleRequest {
    pub sampling_session_id: String,
    /// Number inside the sampler, up to about 10^18; absent only in very old clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = u64, required = true))]
    pub seq_id: Option<u64>,
    #[serde(default = "num_samples::value", deserialize_with = "num_samples::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, default = 1))]
    pub num_samples: i64,
    pub prompt: ModelInput,
    #[serde(default, deserialize_with = "lenient::object_or_default")]
    pub sampling_params: SamplingParams,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub prompt_logprobs: bool,
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1024, default = 0))]
    pub topk_prompt_logprobs: i64,
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1024, default = 0))]
    pub topk_sample_logprobs: i64,
    /// Ids (prompt length − 1, K), dense or CSR; −1 = nothing asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<super::tensor_data::TensorDataJson>))]
    pub target_prompt_logprobs: Option<TensorData>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1024, default = 0))]
    pub prompt_alt_tokens_k: i64,
    /// Score only the last n prompt tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub prompt_logprobs_last_n: Option<i64>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub record_stability_info: bool,
}

impl SampleRequest {
    /// A request for one sample with the protocol's defaults.
    pub fn new(sampling_session_id: impl Into<String>, prompt: ModelInput, sampling_params: SamplingParams) -> Self {
        Self {
            sampling_session_id: sampling_session_id.into(),
            seq_id: None,
            num_samples: num_samples::value(),
            prompt,
            sampling_params,
            prompt_logprobs: false,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            target_prompt_logprobs: None,
            prompt_alt_tokens_k: 0,
            prompt_logprobs_last_n: None,
            record_stability_info: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SamplingParams {
    /// Absent = up to the context's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub max_tokens: Option<i64>,
    /// Absent = random.
    #[serde(default, deserialize_with = "lenient::seed", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<i64>))]
    pub seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// 0 = greedy.
    #[serde(default = "temperature::value", deserialize_with = "temperature::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, default = 1.0))]
    pub temperature: f64,
    /// −1 or 0 = off.
    #[serde(default = "top_k::value", deserialize_with = "top_k::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = -1, default = -1))]
    pub top_k: i64,
    #[serde(default = "top_p::value", deserialize_with = "top_p::or_null")]
    #[cfg_attr(feature = "schema", schema(exclusive_minimum = 0, maximum = 1, default = 1.0))]
    pub top_p: f64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { max_tokens: None, seed: None, stop: None, temperature: 1.0, top_k: top_k::value(), top_p: 1.0 }
    }
}

/// What ends a sequence besides `max_tokens`; absent = the model's own end of sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Stop {
    Text(String),
    /// Token ids; the empty list disables every stop, end of sequence included.
    Tokens(Vec<i64>),
    Texts(Vec<String>),
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let expecting = "a string, a list of strings or a list of token ids, not mixed";
        match lenient::text_or_list(d, expecting, Err, Ok)? {
            Err(text) => Ok(Self::Text(text)),
            Ok(Items::Ids(ids)) => Ok(Self::Tokens(ids)),
            Ok(Items::Texts(texts)) => Ok(Self::Texts(texts)),
            Ok(Items::Lists(_)) => Err(D::Error::custom(format_args!("stop must be {expecting}"))),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "sample")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampleResponse {
    pub sequences: Vec<SampledSequence>,
    /// One entry per prompt token; `null` where not computed (always at index 0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<Option<f32>>>,
    /// One row per prompt token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Option<Vec<Vec<f64>>>>>))]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub prompt_cache_hit_tokens: u32,
    /// Shape and layout of the request's tensor; 0.0 where nothing was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<super::tensor_data::TensorDataJson>))]
    pub target_prompt_logprobs: Option<TensorData>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_alt_tokens: Option<PromptAltTokens>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampledSequence {
    pub stop_reason: StopReason,
    /// Includes the token that completed the stop condition.
    pub tokens: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f32>>,
    /// One row per generated token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Option<Vec<Vec<f64>>>>>))]
    pub topk_sampled_logprobs: Option<TopkLogprobs>,
    /// For each token the `seq_id` of the save whose weights it was drawn from; 0 for base models and checkpoints. An
    /// addition to the protocol, in JSON only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_versions: Option<Vec<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum StopReason {
    /// End of sequence or a stop condition.
    Stop,
    /// `max_tokens`.
    Length,
}

/// (token, logprob) pairs, best first; `None` where not computed.
pub type TopkRow = Option<Vec<(u32, f32)>>;

/// A row of at most `k` pairs per position. JSON knows only the rows; `k` is then the longest one's length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<TopkRow>", into = "Vec<TopkRow>")]
pub struct TopkLogprobs {
    /// As requested.
    pub k: u32,
    pub rows: Vec<TopkRow>,
}

impl From<Vec<TopkRow>> for TopkLogprobs {
    fn from(rows: Vec<TopkRow>) -> Self {
        let k = rows.iter().flatten().map(Vec::len).max().unwrap_or(0) as u32;
        Self { k, rows }
    }
}

impl From<TopkLogprobs> for Vec<TopkRow> {
    fn from(t: TopkLogprobs) -> Self {
        t.rows
    }
}

/// Tokens drawn at each prompt position and their logprobs, both (prompt length − 1, k); row i belongs to position i + 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PromptAltTokens {
    #[cfg_attr(feature = "schema", schema(value_type = super::tensor_data::TensorDataJson))]
    pub tokens: TensorData,
    #[cfg_attr(feature = "schema", schema(value_type = super::tensor_data::TensorDataJson))]
    pub logprobs: TensorData,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::lenient::parse_object;

    fn params(json: &str) -> SamplingParams {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn every_form_of_stop() {
        assert_eq!(params("{}").stop, None);
        assert_eq!(params(r#"{"stop": null}"#).stop, None);
        assert_eq!(params(r#"{"stop": "\n"}"#).stop, Some(Stop::Text("\n".into())));
        assert_eq!(params(r#"{"stop": ["a", "b"]}"#).stop, Some(Stop::Texts(vec!["a".into(), "b".into()])));
        assert_eq!(params(r#"{"stop": [7]}"#).stop, Some(Stop::Tokens(vec![7])));
        assert_eq!(params(r#"{"stop": []}"#).stop, Some(Stop::Tokens(vec![])));
        assert!(serde_json::from_str::<SamplingParams>(r#"{"stop": 7}"#).is_err());
    }

    #[test]
    fn a_bare_sample_request_gets_the_defaults() {
        let r: SampleRequest = parse_object(
            br#"{"sampling_session_id": "s", "seq_id": 999000000007000000, "prompt": {"chunks": [{"tokens": [1]}]}, "prompt_logprobs": null}"#,
        )
        .unwrap();
        assert_eq!(r.seq_id, Some(999_000_000_007_000_000));
        assert_eq!((r.num_samples, r.prompt_logprobs), (1, false));
        assert_eq!(r.sampling_params, SamplingParams::default());
    }

    #[test]
    fn topk_rows_are_pairs_in_json() {
        let t = TopkLogprobs { k: 2, rows: vec![None, Some(vec![(5, -0.5), (6, -1.5)])] };
        let json = serde_json::to_string(&t).unwrap();
        assert_eq!(json, "[null,[[5,-0.5],[6,-1.5]]]");
        assert_eq!(serde_json::from_str::<TopkLogprobs>(&json).unwrap(), t);
    }
}
