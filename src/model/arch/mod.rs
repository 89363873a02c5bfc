//! The supported families: a `config.json` becomes a `DecoderConfig`, or a refusal that names what is not supported.
//!
//! All of them name their tensors alike (`Param::hf_name`), so a family's file holds only what its configuration says
//! in its own way. A family that renames tensors gets its name map here.

mod hf_config;
mod llama;
mod qwen2;
mod qwen3;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::config::DecoderConfig;
use hf_config::HfConfig;

/// The `model_type`s that `decoder_config` accepts.
pub const SUPPORTED: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// The decoder that a parsed `config.json` describes; `eos_ids` is left to the caller.
pub fn decoder_config(json: &Value) -> Result<DecoderConfig> {
    let family = match json.get("model_type").and_then(Value::as_str) {
        Some("llama") => llama::decoder_config,
        Some("qwen2") => qwen2::decoder_config,
        Some("qwen3") => qwen3::decoder_config,
        Some(other) => {
            let supported = SUPPORTED.join(", ");
            return Err(Error::user(format!("model_type {other:?} is not supported; supported are {supported}")));
        }
        None => return Err(Error::user("no model_type: not the config.json of a Transformers model")),
    };
    let hf: HfConfig = Deserialize::deserialize(json).map_err(|e| Error::user(e.to_string()))?;
    hf.check()?;
    let config = family(&hf)?;
    check_sizes(&config)?;
    Ok(config)
}

/// Sizes that the decoder relies on.
fn check_sizes(c: &DecoderConfig) -> Result<()> {
    let sizes = [
        ("vocab_size", c.vocab_size),
        ("hidden_size", c.hidden_size),
        ("num_hidden_layers", c.num_layers),
        ("num_attention_heads", c.num_heads),
        ("num_key_value_heads", c.num_kv_heads),
        ("head_dim", c.head_dim),
        ("intermediate_size", c.intermediate_size),
        ("max_position_embeddings", c.max_context_length),
    ];
    // The bound keeps every product of two sizes in range, whatever a damaged file says.
    if let Some((name, n)) = sizes.iter().find(|(_, n)| *n == 0 || *n > 1 << 28) {
        return Err(Error::user(format!("{name} must be at least 1 and at most {}, got {n}", 1 << 28)));
    }
    if !c.num_heads.is_multiple_of(c.num_kv_heads) {
        let (n, kv) = (c.num_heads, c.num_kv_heads);
        return Err(Error::user(format!("num_attention_heads {n} is not a multiple of num_key_value_heads {kv}")));
    }
    if !c.head_dim.is_multiple_of(2) {
        return Err(Error::user(format!("head_dim must be even, got {}", c.head_dim)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::RopeScaling;
    use serde_json::json;

    fn qwen3() -> Value {
        json!({"model_type": "qwen3", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 20,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 1e6,
            "torch_dtype": "bfloat16", "hidden_act": "silu"})
    }

    fn with(key: &str, value: Value) -> Value {
        let mut json = qwen3();
        json[key] = value;
        json
    }

    fn refusal(json: &Value) -> String {
        decoder_config(json).unwrap_err().message
    }

    #[test]
    fn families_differ_in_bias_norm_and_head_size() {
        let c = decoder_config(&qwen3()).unwrap();
        assert_eq!((c.qkv_bias, c.qk_norm, c.head_dim, c.tied_embeddings), (false, true, 12, true));
        assert_eq!((c.rope.theta, c.rms_norm_eps, c.max_context_length), (1e6, 1e-5, 64));
        let mut json = with("model_type", json!("llama"));
        json["head_dim"] = Value::Null;
        json["tie_word_embeddings"] = Value::Null;
        let c = decoder_config(&json).unwrap();
        assert_eq!((c.qkv_bias, c.qk_norm, c.head_dim, c.tied_embeddings), (false, false, 4, false));
        let c = decoder_config(&with("model_type", json!("qwen2"))).unwrap();
        assert_eq!((c.qkv_bias, c.qk_norm), (true, false));
    }

    #[test]
    fn both_spellings_of_rope_settings_are_read() {
        let scaling = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let old = decoder_config(&with("rope_scaling", scaling.clone())).unwrap().rope;
        let mut merged = scaling;
        merged["rope_theta"] = json!(1e6);
        let mut json = with("rope_parameters", merged);
        json["rope_theta"] = Value::Null;
        assert_eq!(decoder_config(&json).unwrap().rope, old);
        assert!(matches!(old.scaling, RopeScaling::Llama3 { factor: 32.0, .. }));
        let linear = decoder_config(&with("rope_scaling", json!({"type": "linear", "factor": 2.0}))).unwrap();
        assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (key, value, word) in [
            ("model_type", json!("gpt2"), "llama, qwen2, qwen3"),
            ("model_type", json!("qwen3_moe"), "qwen3_moe"),
            ("hidden_act", json!("gelu"), "hidden_act"),
            ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}), "yarn"),
            ("rope_scaling", json!({"rope_type": "llama3", "factor": 4.0}), "low_freq_factor"),
            ("attention_bias", json!(true), "attention_bias"),
            ("mlp_bias", json!(true), "mlp_bias"),
            ("num_experts", json!(8), "num_experts"),
            ("quantization_config", json!({"bits": 4}), "quantization_config"),
            ("layer_types", json!(["full_attention", "sliding_attention"]), "use_sliding_window"),
            ("num_key_value_heads", json!(3), "num_key_value_heads 3"),
            ("head_dim", json!(5), "head_dim"),
            ("vocab_size", json!(0), "vocab_size"),
            ("hidden_size", Value::Null, "hidden_size"),
            ("torch_dtype", json!("float8"), "float8"),
        ] {
            let mut json = with(key, value);
            if json["hidden_size"].is_null() {
                json.as_object_mut().unwrap().remove("hidden_size");
            }
            assert!(refusal(&json).contains(word), "{key}: {}", refusal(&json));
        }
    }

    #[test]
    fn a_sliding_window_that_no_layer_uses_is_fine() {
        let mut json = with("sliding_window", json!(32));
        json["use_sliding_window"] = json!(false);
        assert!(decoder_config(&json).is_ok());
        json["use_sliding_window"] = json!(true);
        json["max_window_layers"] = json!(2);
        assert!(decoder_config(&json).is_ok());
        json["max_window_layers"] = json!(1);
        assert!(refusal(&json).contains("sliding"));
    }
}
