//! Loss names and their configuration, with the defaults of protocol §14.2.

use tinderbox_client::types::training::{LossConfigValue, LossFnConfig};

use crate::command::Loss;
use crate::error::{Error, Result};
use crate::ids::LossId;

/// Every name a client may send, for the error that lists them.
const NAMES: &str = "cross_entropy, importance_sampling, ppo, cispo, dro, gspo, stable_reinforce, custom";

/// Tensors that people put into the configuration by mistake.
const INPUTS: [&str; 6] = ["target_tokens", "weights", "logprobs", "advantages", "sequence_ratio_mask", "mask"];

/// The id of the uploaded loss that `loss_fn` "custom" means; `None` for the losses that are built in.
pub fn custom_id(name: &str, config: &LossFnConfig) -> Result<Option<LossId>> {
    if name != "custom" {
        return Ok(None);
    }
    if let Some(key) = config.keys().find(|k| *k != "loss_id") {
        return Err(unknown_key(name, key, &["loss_id"]));
    }
    match config.get("loss_id") {
        Some(LossConfigValue::Text(id)) => Ok(Some(LossId(id.clone()))),
        Some(_) => Err(Error::user("loss_fn_config of custom: loss_id must be the text that create_custom_loss gave")),
        None => Err(Error::user("loss_fn_config of custom: loss_id is missing; create_custom_loss gives it")),
    }
}

/// The built-in loss of this name. Errors name the key, its value and what the loss takes.
pub fn parse(name: &str, config: &LossFnConfig) -> Result<Loss> {
    let keys: &[&str] = match name {
        "cross_entropy" | "importance_sampling" => &[],
        "ppo" | "cispo" | "gspo" => &["clip_low_threshold", "clip_high_threshold"],
        "dro" => &["beta"],
        "stable_reinforce" => &["kl_coeff"],
        _ => return Err(Error::user(format!("loss_fn {name:?} is unknown; there are {NAMES}"))),
    };
    if let Some(key) = config.keys().find(|k| !keys.contains(&k.as_str())) {
        return Err(unknown_key(name, key, keys));
    }
    let get = |key: &str, default: f64| number(name, key, config, default);
    let clip = |low: f64, high: f64| -> Result<(f64, f64)> {
        let (low, high) = (get("clip_low_threshold", low)?, get("clip_high_threshold", high)?);
        if low > high {
            return Err(Error::user(format!(
                "loss_fn_config of {name}: clip_low_threshold {low} is above clip_high_threshold {high}"
            )));
        }
        Ok((low, high))
    };
    Ok(match name {
        "cross_entropy" => Loss::CrossEntropy,
        "importance_sampling" => Loss::ImportanceSampling,
        "ppo" => clip(0.8, 1.2).map(|(clip_low, clip_high)| Loss::Ppo { clip_low, clip_high })?,
        "cispo" => clip(0.0, 4.0).map(|(clip_low, clip_high)| Loss::Cispo { clip_low, clip_high })?,
        "gspo" => clip(0.8, 1.2).map(|(clip_low, clip_high)| Loss::Gspo { clip_low, clip_high })?,
        "dro" => Loss::Dro { beta: get("beta", 0.05)? },
        _ => Loss::StableReinforce { kl_coeff: get("kl_coeff", 0.0)? },
    })
}

/// The name as the wire spells it.
pub fn name(loss: &Loss) -> &'static str {
    match loss {
        Loss::CrossEntropy => "cross_entropy",
        Loss::ImportanceSampling => "importance_sampling",
        Loss::Ppo { .. } => "ppo",
        Loss::Cispo { .. } => "cispo",
        Loss::Dro { .. } => "dro",
        Loss::Gspo { .. } => "gspo",
        Loss::StableReinforce { .. } => "stable_reinforce",
        Loss::Custom(_) => "custom",
    }
}

fn number(loss: &str, key: &str, config: &LossFnConfig, default: f64) -> Result<f64> {
    match config.get(key) {
        None => Ok(default),
        Some(LossConfigValue::Number(x)) if x.is_finite() => Ok(*x),
        Some(LossConfigValue::Number(x)) => {
            Err(Error::user(format!("loss_fn_config of {loss}: {key} is {x}, it must be a finite number")))
        }
        Some(LossConfigValue::Text(t)) => {
            Err(Error::user(format!("loss_fn_config of {loss}: {key} is the text {t:?}, it must be a number")))
        }
        Some(LossConfigValue::Other(_)) => {
            Err(Error::user(format!("loss_fn_config of {loss}: {key} must be a number")))
        }
    }
}

fn unknown_key(loss: &str, key: &str, keys: &[&str]) -> Error {
    if INPUTS.contains(&key) {
        return Error::user(format!("loss_fn_config of {loss}: {key:?} belongs in each datum's loss_fn_inputs"));
    }
    let takes = if keys.is_empty() { "takes no configuration".into() } else { format!("takes {}", keys.join(", ")) };
    Error::user(format!("loss_fn_config of {loss}: unknown key {key:?}; the loss {takes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, f64)]) -> LossFnConfig {
        pairs.iter().map(|(k, v)| (k.to_string(), LossConfigValue::Number(*v))).collect()
    }

    #[test]
    fn the_documented_defaults() {
        let none = config(&[]);
        assert_eq!(parse("ppo", &none).unwrap(), Loss::Ppo { clip_low: 0.8, clip_high: 1.2 });
        assert_eq!(parse("cispo", &none).unwrap(), Loss::Cispo { clip_low: 0.0, clip_high: 4.0 });
        assert_eq!(parse("gspo", &none).unwrap(), Loss::Gspo { clip_low: 0.8, clip_high: 1.2 });
        assert_eq!(parse("dro", &none).unwrap(), Loss::Dro { beta: 0.05 });
    }

    #[test]
    fn settings_are_used() {
        let c = config(&[("clip_low_threshold", 0.5), ("clip_high_threshold", 3.0)]);
        assert_eq!(parse("ppo", &c).unwrap(), Loss::Ppo { clip_low: 0.5, clip_high: 3.0 });
        assert!(parse("ppo", &config(&[("clip_low_threshold", 2.0)])).unwrap_err().message.contains("above"));
        assert!(parse("dro", &config(&[("beta", f64::NAN)])).is_err());
        let list = |key: &str| [(key.to_string(), serde_json::from_str::<LossConfigValue>("[0.1]").unwrap())].into();
        assert!(parse("dro", &list("beta")).unwrap_err().message.contains("beta must be a number"));
        assert!(parse("ppo", &list("advantages")).unwrap_err().message.contains("loss_fn_inputs"));
        let text = [("beta".to_string(), LossConfigValue::Text("big".into()))].into();
        assert!(parse("dro", &text).unwrap_err().message.contains("\"big\""));
    }

    #[test]
    fn an_uploaded_loss_is_named_by_its_id() {
        let text = |key: &str| [(key.to_string(), LossConfigValue::Text("loss-1".into()))].into();
        assert_eq!(custom_id("custom", &text("loss_id")).unwrap(), Some(LossId("loss-1".into())));
        assert_eq!(custom_id("ppo", &text("loss_id")).unwrap(), None);
        for config in [config(&[]), config(&[("loss_id", 1.0)]), text("id"), text("beta")] {
            assert!(custom_id("custom", &config).unwrap_err().message.contains("loss_id"), "{config:?}");
        }
    }

    #[test]
    fn unknown_names_and_keys_are_named() {
        assert!(parse("no_such_loss", &config(&[])).unwrap_err().message.contains("no_such_loss"));
        assert!(parse("", &config(&[])).unwrap_err().message.contains("cross_entropy"));
        let e = parse("ppo", &config(&[("epsilon", 0.2)])).unwrap_err();
        assert!(e.message.contains("epsilon") && e.message.contains("clip_low_threshold"), "{e}");
        let e = parse("ppo", &config(&[("advantages", 0.2)])).unwrap_err();
        assert!(e.message.contains("loss_fn_inputs"), "{e}");
        let e = parse("cross_entropy", &config(&[("beta", 0.2)])).unwrap_err();
        assert!(e.message.contains("takes no configuration"), "{e}");
    }
}
