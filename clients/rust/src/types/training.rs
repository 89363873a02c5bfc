//! Runs and what is done to them: create, inspect, forward_backward, optim_step, unload (protocol §7.3 to 7.6).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::datum::{Datum, LossFnInputs};
use super::json_text::JsonText;
use super::lenient::{self, Metadata, default_value};

default_value!(rank: i64 = 32);
default_value!(enabled: bool = true);
default_value!(learning_rate: f64 = 1e-4);
default_value!(beta1: f64 = 0.9);
default_value!(beta2: f64 = 0.95);
default_value!(eps: f64 = 1e-12);
default_value!(adamw: String = "adamw".into());

/// `POST /create_model`: promise of [`CreateModelResponse`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_model")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateModelRequest {
    pub session_id: String,
    /// Slot in the session, from 0.
    pub model_seq_id: u64,
    pub base_model: String,
    #[serde(default, deserialize_with = "lenient::metadata", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<BTreeMap<String, serde_json::Value>>))]
    pub user_metadata: Option<Metadata>,
    /// Absent = every weight is trained.
    #[serde(default, deserialize_with = "lenient::object", skip_serializing_if = "Option::is_none")]
    pub lora_config: Option<LoraConfig>,
    #[serde(default, deserialize_with = "lenient::object_or_default")]
    pub optimizer_config: OptimizerConfig,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LoraConfig {
    #[serde(default = "rank::value", deserialize_with = "rank::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, default = 32))]
    pub rank: i64,
    /// Absent = random.
    #[serde(default, deserialize_with = "lenient::seed", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<i64>))]
    pub seed: Option<u64>,
    #[serde(default = "enabled::value", deserialize_with = "enabled::or_null")]
    #[cfg_attr(feature = "schema", schema(default = true))]
    pub train_unembed: bool,
    #[serde(default = "enabled::value", deserialize_with = "enabled::or_null")]
    #[cfg_attr(feature = "schema", schema(default = true))]
    pub train_mlp: bool,
    #[serde(default = "enabled::value", deserialize_with = "enabled::or_null")]
    #[cfg_attr(feature = "schema", schema(default = true))]
    pub train_attn: bool,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self { rank: rank::value(), seed: None, train_unembed: true, train_mlp: true, train_attn: true }
    }
}

/// `{"type": "adamw"}` or another optimiser's name with its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OptimizerConfig {
    #[serde(rename = "type", default = "adamw::value", deserialize_with = "adamw::or_null")]
    #[cfg_attr(feature = "schema", schema(default = "adamw"))]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self { kind: adamw::value(), version: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_model")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateModelResponse {
    pub model_id: String,
}

/// `POST /get_info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "get_info")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GetInfoRequest {
    pub model_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "get_info")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GetInfoResponse {
    pub model_id: String,
    pub model_data: ModelData,
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_lora: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelData {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Clients rely on it although it is optional on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// What clients give to their tokenizer library: a hub id or a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_id: Option<String>,
}

/// `POST /forward_backward`, as JSON and as what its protobuf form converts to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ForwardBackwardRequest {
    pub model_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = u64, required = true, minimum = 1))]
    pub seq_id: Option<u64>,
    pub forward_backward_input: ForwardBackwardInput,
    /// Outputs and metrics only; no gradient is touched.
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub forward_only: bool,
}

/// `POST /forward` of SDKs up to 0.24.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ForwardRequest {
    pub model_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = u64, required = true, minimum = 1))]
    pub seq_id: Option<u64>,
    pub forward_input: ForwardBackwardInput,
}

impl From<ForwardRequest> for ForwardBackwardRequest {
    fn from(r: ForwardRequest) -> Self {
        Self { model_id: r.model_id, seq_id: r.seq_id, forward_backward_input: r.forward_input, forward_only: true }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ForwardBackwardInput {
    pub data: Vec<Datum>,
    pub loss_fn: String,
    #[serde(default, deserialize_with = "lenient::null_default", skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, LossConfigValue>))]
    pub loss_fn_config: LossFnConfig,
}

pub type LossFnConfig = BTreeMap<String, LossConfigValue>;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum LossConfigValue {
    Number(f64),
    Text(String),
    /// Neither of the two, as it came, so that a server can refuse it by its key.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    Other(JsonText),
}

impl<'de> Deserialize<'de> for LossConfigValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = JsonText::deserialize(d)?;
        Ok(match value.as_str().as_bytes().first() {
            Some(b'"') => Self::Text(value.into_plain()),
            _ => value.as_str().parse().map_or_else(|_| Self::Other(value), Self::Number),
        })
    }
}

/// What forward and forward_backward give back: one entry of `loss_fn_outputs` per datum, in request order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ForwardBackwardOutput {
    pub loss_fn_output_type: String,
    #[cfg_attr(feature = "schema", schema(value_type = Vec<BTreeMap<String, super::tensor_data::TensorDataJson>>))]
    pub loss_fn_outputs: Vec<LossFnInputs>,
    /// Names end in `:` and how chunks combine (`loss:sum`).
    pub metrics: BTreeMap<String, f64>,
}

/// `POST /optim_step`: promise of [`OptimStepResponse`]. Exactly one of the two parameter sets is present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "optim_step")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OptimStepRequest {
    pub model_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = u64, required = true, minimum = 1))]
    pub seq_id: Option<u64>,
    #[serde(default, deserialize_with = "lenient::object", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = AdamParams, required = true))]
    pub adam_params: Option<AdamParams>,
    /// Settings of another optimiser. Tinderbox has AdamW alone and refuses them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<serde_json::Value>))]
    pub optimizer_params: Option<JsonText>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AdamParams {
    #[serde(default = "learning_rate::value", deserialize_with = "learning_rate::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, default = 1e-4))]
    pub learning_rate: f64,
    #[serde(default = "beta1::value", deserialize_with = "beta1::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, exclusive_maximum = 1, default = 0.9))]
    pub beta1: f64,
    #[serde(default = "beta2::value", deserialize_with = "beta2::or_null")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, exclusive_maximum = 1, default = 0.95))]
    pub beta2: f64,
    #[serde(default = "eps::value", deserialize_with = "eps::or_null")]
    #[cfg_attr(feature = "schema", schema(exclusive_minimum = 0, default = 1e-12))]
    pub eps: f64,
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, default = 0.0))]
    pub weight_decay: f64,
    /// 0 = no clipping.
    #[serde(default, deserialize_with = "lenient::null_default")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, default = 0.0))]
    pub grad_clip_norm: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self {
            learning_rate: learning_rate::value(),
            beta1: beta1::value(),
            beta2: beta2::value(),
            eps: eps::value(),
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OptimStepResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, f64>, required = true))]
    pub metrics: Option<BTreeMap<String, f64>>,
}

/// `POST /unload_model` of SDKs up to 0.25: promise of [`UnloadModelResponse`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "unload_model")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UnloadModelRequest {
    pub model_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "unload_model")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UnloadModelResponse {
    pub model_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::lenient::parse_object;

    #[test]
    fn missing_and_null_take_the_protocols_defaults() {
        let r: OptimStepRequest =
            parse_object(br#"{"model_id": "m", "seq_id": null, "adam_params": {"beta1": null, "extra": []}}"#).unwrap();
        assert_eq!(r.adam_params, Some(AdamParams::default()));
        assert_eq!(AdamParams::default().eps, 1e-12);
        assert_eq!(r.seq_id, None);
        let r: CreateModelRequest = parse_object(br#"{"session_id": "s", "model_seq_id": 0, "base_model": "m", "lora_config": {}, "optimizer_config": null}"#).unwrap();
        assert_eq!(r.lora_config, Some(LoraConfig::default()));
        assert_eq!(r.optimizer_config.kind, "adamw");
    }

    #[test]
    fn wrong_types_are_refused() {
        for body in [
            r#"{"model_id": 7, "seq_id": 1, "adam_params": {}}"#,
            r#"{"model_id": "x", "seq_id": "one", "adam_params": {}}"#,
            r#"{"model_id": "x", "seq_id": 1, "adam_params": []}"#,
            r#"{"model_id": "x", "seq_id": 1, "adam_params": {"learning_rate": NaN}}"#,
        ] {
            assert!(parse_object::<OptimStepRequest>(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn the_type_literal_is_written_and_not_needed() {
        let r = GetInfoRequest { model_id: "m".into() };
        assert_eq!(serde_json::to_string(&r).unwrap(), r#"{"type":"get_info","model_id":"m"}"#);
        assert_eq!(parse_object::<GetInfoRequest>(br#"{"model_id": "m"}"#).unwrap(), r);
    }

    #[test]
    fn old_json_forward_backward() {
        let r: ForwardBackwardRequest = parse_object(
            br#"{"model_id": "m", "forward_backward_input": {"loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 0.9},
                 "data": [{"model_input": {"chunks": [{"tokens": [1]}]}, "loss_fn_inputs": {"target_tokens": {"data": [2], "dtype": "int64"}}}]}}"#,
        )
        .unwrap();
        assert!(!r.forward_only);
        assert_eq!(r.forward_backward_input.data.len(), 1);
        assert_eq!(r.forward_backward_input.loss_fn_config["clip_low_threshold"], LossConfigValue::Number(0.9));
    }
}
