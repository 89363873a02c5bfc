//! An adapter directory as `peft` and vLLM load it: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::tensors::{self, NamedArray, Reader};
use super::{Layout, write};
use crate::error::{Error, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Writes both files. Arrays are named `<module>.lora_A` and `<module>.lora_B`.
pub fn write(dir: &Path, base_model: &str, rank: usize, alpha: f32, weights: &[NamedArray]) -> Result<()> {
    let config = json!({
        "auto_mapping": null,
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": alpha_number(alpha),
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": rank,
        "revision": null,
        "target_modules": target_modules(weights),
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    });
    write::json(&dir.join(CONFIG), &config)?;
    tensors::write(&dir.join(WEIGHTS), weights.iter().map(|a| (key(&a.name), a)))
}

/// Reads the arrays of `layout` back.
///
/// # Errors
/// User errors when names, shapes, rank or alpha differ from what is expected; server errors for damaged files.
pub fn read(dir: &Path, rank: usize, alpha: f32, layout: &Layout) -> Result<Vec<NamedArray>> {
    let config = write::read_json(&dir.join(CONFIG))?;
    for (field, want) in [("r", json!(rank)), ("lora_alpha", alpha_number(alpha)), ("peft_type", json!("LORA"))] {
        if config[field] != want {
            return Err(Error::user(format!("{CONFIG}: {field} is {}, expected {want}", config[field])));
        }
    }
    tensors::read_all(&mut [Reader::open(&dir.join(WEIGHTS))?], layout, key)
}

/// PEFT wraps the model twice and calls each matrix a weight.
fn key(name: &str) -> String {
    format!("base_model.model.{name}.weight")
}

/// PEFT declares alpha an integer; some readers insist.
fn alpha_number(alpha: f32) -> Value {
    if alpha.fract() == 0.0 && alpha.abs() < 1e9 { json!(alpha as i64) } else { json!(alpha) }
}

/// The last parts of the modules' paths (`q_proj`), which PEFT looks for in every layer; the whole paths where the
/// layers differ.
fn target_modules(weights: &[NamedArray]) -> BTreeSet<&str> {
    let modules: BTreeSet<&str> = weights.iter().filter_map(|a| a.name.strip_suffix(".lora_A")).collect();
    let mut layers: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for (layer, path) in modules.iter().filter_map(|m| layer_of(m)) {
        layers.entry(layer).or_default().insert(path);
    }
    let first = layers.values().next();
    let alike = layers.iter().enumerate().all(|(i, (layer, paths))| i == *layer && Some(paths) == first);
    if alike { modules.into_iter().map(|m| m.rsplit('.').next().unwrap_or(m)).collect() } else { modules }
}

/// `model.layers.3.mlp.up_proj` → (3, `mlp.up_proj`).
fn layer_of(module: &str) -> Option<(usize, &str)> {
    let (layer, path) = module.strip_prefix("model.layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, path))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{array, layout};
    use super::*;

    fn pair(module: &str) -> [NamedArray; 2] {
        [array(&format!("{module}.lora_A"), &[2, 3], 1.0), array(&format!("{module}.lora_B"), &[5, 2], 2.0)]
    }

    fn targets(modules: &[&str]) -> Vec<String> {
        let weights: Vec<_> = modules.iter().flat_map(|m| pair(m)).collect();
        target_modules(&weights).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn modules_are_short_names_only_where_all_layers_agree() {
        let (q0, q1) = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj");
        let up0 = "model.layers.0.mlp.up_proj";
        assert_eq!(targets(&[q0, q1, "lm_head"]), ["lm_head", "q_proj"]);
        assert_eq!(targets(&[q0, q1, up0]), [up0, q0, q1]);
        assert_eq!(targets(&[q1]), [q1]);
        assert_eq!(targets(&["lm_head"]), ["lm_head"]);
    }

    #[test]
    fn files_have_pefts_names_and_fields() {
        let dir = tempfile::tempdir().unwrap();
        let weights = pair("lm_head");
        write(dir.path(), "org/base", 2, 32.0, &weights).unwrap();
        let config = write::read_json(&dir.path().join(CONFIG)).unwrap();
        assert_eq!(config["peft_type"], "LORA");
        assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(2), &json!(32)));
        assert_eq!(config["base_model_name_or_path"], "org/base");
        assert_eq!(config["target_modules"], json!(["lm_head"]));
        let bytes = std::fs::read(dir.path().join(WEIGHTS)).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names = file.names();
        names.sort();
        assert_eq!(names, ["base_model.model.lm_head.lora_A.weight", "base_model.model.lm_head.lora_B.weight"]);
        assert_eq!(file.tensor(names[1]).unwrap().shape(), [5, 2]);
        assert_eq!(read(dir.path(), 2, 32.0, &layout(&weights)).unwrap(), weights);
    }

    #[test]
    fn another_rank_alpha_or_shape_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let weights = pair("lm_head");
        write(dir.path(), "b", 2, 32.0, &weights).unwrap();
        let mut want = layout(&weights);
        let message = |rank, alpha, want: &Layout| read(dir.path(), rank, alpha, want).unwrap_err().message;
        assert_eq!(message(4, 32.0, &want), "adapter_config.json: r is 2, expected 4");
        assert_eq!(message(2, 16.5, &want), "adapter_config.json: lora_alpha is 32, expected 16.5");
        want[1].1 = vec![6, 2];
        let e = message(2, 32.0, &want);
        assert!(e.contains("base_model.model.lm_head.lora_B.weight has shape [5, 2], the model needs [6, 2]"), "{e}");
    }
}
