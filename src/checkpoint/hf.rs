//! A whole model as Transformers loads it: configuration, tokenizer, and f32 weights in one file or in shards.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::tensors::{self, NamedArray, Reader};
use super::{Layout, write};
use crate::error::{Error, Result};

/// Size from which weights are cut into several files.
pub const SHARD_BYTES: usize = 4 << 30;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Taken over from the base model where it has them.
const COPIED: [&str; 9] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
];

/// Writes the directory. Arrays have Transformers' tensor names; a tied model comes without its head.
pub fn write(dir: &Path, base_dir: &Path, weights: &[NamedArray], shard_bytes: usize) -> Result<()> {
    write_config(dir, base_dir)?;
    for name in COPIED.iter().filter(|n| base_dir.join(n).exists()) {
        std::fs::copy(base_dir.join(name), dir.join(name))
            .map_err(|e| Error::server(format!("cannot write {}: {e}", dir.join(name).display())))?;
    }
    let shards = cut(weights, shard_bytes);
    if let [one] = shards[..] {
        return write_file(&dir.join(SINGLE), one);
    }
    let mut weight_map = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        write_file(&dir.join(&name), shard)?;
        weight_map.extend(shard.iter().map(|a| (&a.name, name.clone())));
    }
    let total: usize = weights.iter().map(bytes).sum();
    write::json(&dir.join(INDEX), &json!({"metadata": {"total_size": total}, "weight_map": weight_map}))
}

/// Reads the arrays of `layout` back.
///
/// # Errors
/// User errors when names or shapes differ from what is expected; server errors for damaged files.
pub fn read(dir: &Path, layout: &Layout) -> Result<Vec<NamedArray>> {
    let mut files = Vec::new();
    if dir.join(SINGLE).exists() {
        files.push(Reader::open(&dir.join(SINGLE))?);
    } else {
        let path = dir.join(INDEX);
        let index = write::read_json(&path)?;
        let map = index["weight_map"].as_object();
        let map = map.ok_or_else(|| Error::server(format!("{} is damaged: no weight_map", path.display())))?;
        let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
        names.sort();
        names.dedup();
        for name in names {
            files.push(Reader::open(&dir.join(name))?);
        }
    }
    tensors::read_all(&mut files, layout, str::to_owned)
}

/// The base's configuration; only the dtype is now what the files hold.
fn write_config(dir: &Path, base_dir: &Path) -> Result<()> {
    let mut config = write::read_json(&base_dir.join(CONFIG))?;
    let key = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    let fields = config.as_object_mut();
    let fields = fields.ok_or_else(|| Error::server(format!("{}: not an object", base_dir.join(CONFIG).display())))?;
    fields.insert(key.into(), json!("float32"));
    write::json(&dir.join(CONFIG), &config)
}

fn write_file(path: &Path, arrays: &[NamedArray]) -> Result<()> {
    tensors::write(path, arrays.iter().map(|a| (a.name.clone(), a)))
}

fn bytes(array: &NamedArray) -> usize {
    array.data.len() * size_of::<f32>()
}

/// Runs of arrays of at most `limit` bytes each, or of one larger array. At least one run.
fn cut(arrays: &[NamedArray], limit: usize) -> Vec<&[NamedArray]> {
    let (mut shards, mut start, mut size) = (Vec::new(), 0, 0);
    for (i, array) in arrays.iter().enumerate() {
        if i > start && size + bytes(array) > limit {
            shards.push(&arrays[start..i]);
            (start, size) = (i, 0);
        }
        size += bytes(array);
    }
    shards.push(&arrays[start..]);
    shards
}

#[cfg(test)]
mod tests {
    use super::super::tests::{array, layout};
    use super::*;
    use crate::checkpoint::write::tests::names;
    use std::fs;
    use tempfile::TempDir;

    fn base(dtype_key: &str) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(r#"{{"model_type": "llama", "{dtype_key}": "bfloat16", "rms_norm_eps": 1e-05}}"#);
        fs::write(dir.path().join(CONFIG), config).unwrap();
        fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        fs::write(dir.path().join("notes.txt"), "x").unwrap();
        dir
    }

    fn weights() -> Vec<NamedArray> {
        vec![
            array("model.embed_tokens.weight", &[4, 2], 1.0),
            array("model.norm.weight", &[2], 2.0),
            array("z", &[8], 3.0),
        ]
    }

    #[test]
    fn a_small_model_is_one_file_with_the_bases_configuration() {
        for key in ["torch_dtype", "dtype"] {
            let (base, dir) = (base(key), tempfile::tempdir().unwrap());
            write(dir.path(), base.path(), &weights(), SHARD_BYTES).unwrap();
            assert_eq!(names(dir.path()), [CONFIG, SINGLE, "tokenizer.json"]);
            let config = write::read_json(&dir.path().join(CONFIG)).unwrap();
            assert_eq!(config, json!({"model_type": "llama", key: "float32", "rms_norm_eps": 1e-5}));
            assert_eq!(read(dir.path(), &layout(&weights())).unwrap(), weights());
        }
    }

    #[test]
    fn a_large_model_is_cut_and_indexed() {
        let (base, dir) = (base("dtype"), tempfile::tempdir().unwrap());
        write(dir.path(), base.path(), &weights(), 40).unwrap();
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(names(dir.path()), [CONFIG, shards[0], shards[1], INDEX, "tokenizer.json"]);
        let index = write::read_json(&dir.path().join(INDEX)).unwrap();
        assert_eq!(index["metadata"]["total_size"], 72);
        assert_eq!(index["weight_map"]["model.norm.weight"], shards[0]);
        assert_eq!(index["weight_map"]["z"], shards[1]);
        assert_eq!(read(dir.path(), &layout(&weights())).unwrap(), weights());
        fs::remove_file(dir.path().join(shards[1])).unwrap();
        assert!(read(dir.path(), &layout(&weights())).unwrap_err().message.contains(shards[1]));
    }

    #[test]
    fn an_array_above_the_limit_has_a_file_of_its_own() {
        let weights = weights();
        let sizes: Vec<_> = cut(&weights, 1).iter().map(|s| s.len()).collect();
        assert_eq!(sizes, [1, 1, 1]);
        assert_eq!(cut(&[], 1).len(), 1);
    }
}
