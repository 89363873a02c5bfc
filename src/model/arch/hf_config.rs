//! The keys of a `config.json` that matter to the decoder, and the refusals that families share.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::model::config::{DecoderConfig, Rope, RopeScaling};

/// Absent and null are the same.
#[derive(Deserialize)]
pub struct HfConfig {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    intermediate_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    /// Transformers 5: theta and scaling together.
    rope_parameters: Option<Map<String, Value>>,
    partial_rotary_factor: Option<f64>,
    use_sliding_window: Option<bool>,
    sliding_window: Option<usize>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    quantization_config: Option<Value>,
    torch_dtype: Option<String>,
    /// Transformers 5's name for `torch_dtype`.
    dtype: Option<String>,
}

impl HfConfig {
    /// What all families share; biases and q/k norm off.
    pub fn decoder(&self, head_dim: usize) -> Result<DecoderConfig> {
        Ok(DecoderConfig {
            model_type: self.model_type.clone(),
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            num_layers: self.num_hidden_layers,
            num_heads: self.num_attention_heads,
            num_kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim,
            intermediate_size: self.intermediate_size,
            rms_norm_eps: self.rms_norm_eps.unwrap_or(1e-6),
            rope: self.rope()?,
            tied_embeddings: self.tie_word_embeddings.unwrap_or(false),
            qkv_bias: false,
            qk_norm: false,
            max_context_length: self.max_position_embeddings,
            eos_ids: Vec::new(),
        })
    }

    /// The usual head size, where config.json gives none.
    pub fn even_split(&self) -> Result<usize> {
        if self.num_attention_heads == 0 || !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            let (d, n) = (self.hidden_size, self.num_attention_heads);
            return Err(Error::user(format!("no head_dim, and hidden_size {d} is not a multiple of {n} heads")));
        }
        Ok(self.hidden_size / self.num_attention_heads)
    }

    /// Refuses what no family here supports.
    pub fn check(&self) -> Result<()> {
        let act = self.hidden_act.as_deref().unwrap_or("silu");
        if act != "silu" {
            return Err(Error::user(format!("hidden_act {act:?} is not supported, only \"silu\"")));
        }
        if self.quantization_config.as_ref().is_some_and(|v| !v.is_null()) {
            return Err(Error::user(
                "quantization_config: quantised weights are not supported, only f32, f16 and bf16",
            ));
        }
        if self.num_experts.or(self.num_local_experts).is_some_and(|n| n > 0) {
            return Err(Error::user("num_experts: mixture-of-experts models are not supported"));
        }
        if self.mlp_bias == Some(true) {
            return Err(Error::user("mlp_bias: biases in the MLP are not supported"));
        }
        if let Some(dtype) = self.dtype.as_deref().or(self.torch_dtype.as_deref())
            && !matches!(dtype, "float32" | "float16" | "bfloat16")
        {
            return Err(Error::user(format!(
                "torch_dtype {dtype:?} is not supported, only float32, float16, bfloat16"
            )));
        }
        Ok(())
    }

    /// For families that bias q, k, v and o together.
    pub fn refuse_attention_bias(&self) -> Result<()> {
        if self.attention_bias == Some(true) {
            let family = &self.model_type;
            return Err(Error::user(format!("attention_bias: biases on {family}'s q, k, v and o are not supported")));
        }
        Ok(())
    }

    /// For families whose layers can be switched to a sliding window.
    pub fn refuse_sliding_window(&self) -> Result<()> {
        let by_type = self.layer_types.iter().flatten().any(|t| t != "full_attention");
        let windowed_layers = self.num_hidden_layers > self.max_window_layers.unwrap_or(28);
        let by_switch = self.use_sliding_window == Some(true) && self.sliding_window.is_some() && windowed_layers;
        if by_type || (by_switch && self.layer_types.is_none()) {
            return Err(Error::user("use_sliding_window: sliding-window attention is not supported"));
        }
        Ok(())
    }

    fn rope(&self) -> Result<Rope> {
        if self.partial_rotary_factor.is_some_and(|f| f != 1.0) {
            return Err(Error::user("partial_rotary_factor: rotating a part of the head is not supported"));
        }
        let merged = self.rope_parameters.as_ref();
        if merged.and_then(|m| m.get("partial_rotary_factor")).and_then(Value::as_f64).is_some_and(|f| f != 1.0) {
            return Err(Error::user("partial_rotary_factor: rotating a part of the head is not supported"));
        }
        let theta = merged.and_then(|m| m.get("rope_theta")).and_then(Value::as_f64).or(self.rope_theta);
        let theta = theta.unwrap_or(10000.0);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(Error::user(format!("rope_theta must be a positive number, got {theta}")));
        }
        let scaling = match merged.or(self.rope_scaling.as_ref()) {
            Some(map) => rope_scaling(map)?,
            None => RopeScaling::None,
        };
        Ok(Rope { theta, scaling })
    }
}

fn rope_scaling(map: &Map<String, Value>) -> Result<RopeScaling> {
    let number = |key: &str| {
        let value = map.get(key).and_then(Value::as_f64).filter(|v| v.is_finite() && *v > 0.0);
        value.ok_or_else(|| Error::user(format!("rope scaling needs a positive {key}")))
    };
    let kind = map.get("rope_type").or_else(|| map.get("type")).and_then(Value::as_str).unwrap_or("default");
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_position_embeddings: number("original_max_position_embeddings")?,
        }),
        other => Err(Error::user(format!("rope scaling {other:?} is not supported, only default, linear and llama3"))),
    }
}
