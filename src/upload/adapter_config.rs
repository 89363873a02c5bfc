//! `adapter_config.json` of an adapter that was trained elsewhere: what of it matters, and what cannot be taken over.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};

pub const CONFIG: &str = "adapter_config.json";

/// The file is small; what is not was never one.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    pub rank: usize,
    /// The factor of B·A.
    pub scale: f64,
    /// The base model as the adapter calls it.
    pub base_model: Option<String>,
    /// Module names; `None` where it is a pattern.
    pub target_modules: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct File {
    peft_type: Option<String>,
    task_type: Option<String>,
    base_model_name_or_path: Option<String>,
    r: Option<u64>,
    lora_alpha: Option<f64>,
    #[serde(default)]
    use_rslora: Option<bool>,
    target_modules: Option<Value>,
}

/// Settings that change what an adapter computes or add weights to it, and the values that leave it as it is.
const PLAIN: [(&str, &[&str]); 12] = [
    ("bias", &["null", "\"none\""]),
    ("use_dora", &["null", "false"]),
    ("lora_bias", &["null", "false"]),
    ("fan_in_fan_out", &["null", "false"]),
    ("use_qalora", &["null", "false"]),
    ("modules_to_save", &["null", "[]"]),
    ("rank_pattern", &["null", "{}"]),
    ("alpha_pattern", &["null", "{}"]),
    ("target_parameters", &["null", "[]"]),
    ("trainable_token_indices", &["null", "[]", "{}"]),
    ("layer_replication", &["null", "[]"]),
    ("alora_invocation_tokens", &["null", "[]"]),
];

impl AdapterConfig {
    /// # Errors
    /// User errors that name the field, its value and what is accepted.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(CONFIG);
        if std::fs::metadata(&path)?.len() > MAX_BYTES {
            return Err(Error::user(format!("{CONFIG} is larger than {MAX_BYTES} bytes")));
        }
        let json: Value =
            serde_json::from_slice(&std::fs::read(&path)?).map_err(|e| Error::user(format!("{CONFIG}: {e}")))?;
        Self::parse(&json)
    }

    fn parse(json: &Value) -> Result<Self> {
        let bad = |why: String| Error::user(format!("{CONFIG}: {why}"));
        let file = File::deserialize(json).map_err(|e| bad(e.to_string()))?;
        if file.peft_type.as_deref() != Some("LORA") {
            return Err(bad(format!("peft_type is {}; only \"LORA\" is supported", json["peft_type"])));
        }
        if file.task_type.as_deref().is_some_and(|t| t != "CAUSAL_LM") {
            return Err(bad(format!("task_type is {}; only \"CAUSAL_LM\" is supported", json["task_type"])));
        }
        for (field, plain) in PLAIN {
            let value = json[field].to_string();
            if !plain.contains(&value.as_str()) {
                return Err(bad(format!("{field} is {value}; only adapters without it are supported")));
            }
        }
        let rank = file.r.filter(|r| *r >= 1).ok_or_else(|| bad(format!("r is {}; it must be ≥ 1", json["r"])))?;
        let alpha = file.lora_alpha.filter(|a| a.is_finite() && *a != 0.0);
        let alpha = alpha.ok_or_else(|| bad(format!("lora_alpha is {}; it must be a number", json["lora_alpha"])))?;
        let divisor = if file.use_rslora == Some(true) { (rank as f64).sqrt() } else { rank as f64 };
        let names = |v: &Value| v.as_array()?.iter().map(|m| m.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
        Ok(Self {
            rank: rank as usize,
            scale: alpha / divisor,
            base_model: file.base_model_name_or_path,
            target_modules: file.target_modules.as_ref().and_then(names),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "org/base", "r": 4,
               "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj"], "modules_to_save": null})
    }

    #[test]
    fn the_scale_is_alpha_over_rank_or_its_root() {
        let plain = AdapterConfig::parse(&config()).unwrap();
        assert_eq!((plain.rank, plain.scale, plain.base_model.as_deref()), (4, 2.0, Some("org/base")));
        assert_eq!(plain.target_modules.unwrap(), ["q_proj"]);
        let mut rslora = config();
        rslora["use_rslora"] = json!(true);
        rslora["target_modules"] = json!("all-linear");
        let rslora = AdapterConfig::parse(&rslora).unwrap();
        assert_eq!((rslora.scale, rslora.target_modules), (4.0, None));
    }

    #[test]
    fn what_cannot_be_taken_over_is_named() {
        for (field, value, named) in [
            ("peft_type", json!("IA3"), "peft_type is \"IA3\""),
            ("task_type", json!("SEQ_CLS"), "task_type is \"SEQ_CLS\""),
            ("r", json!(0), "r is 0"),
            ("lora_alpha", json!(null), "lora_alpha is null"),
            ("bias", json!("all"), "bias is \"all\""),
            ("use_dora", json!(true), "use_dora is true"),
            ("modules_to_save", json!(["lm_head"]), "modules_to_save is [\"lm_head\"]"),
            ("rank_pattern", json!({"q_proj": 8}), "rank_pattern is {\"q_proj\":8}"),
            ("r", json!("four"), "invalid type"),
        ] {
            let mut changed = config();
            changed[field] = value;
            let e = AdapterConfig::parse(&changed).unwrap_err().message;
            assert!(e.starts_with("adapter_config.json: ") && e.contains(named), "{e}");
        }
        assert!(AdapterConfig::parse(&json!([])).is_err());
    }
}
