//! Finds a model of the Hugging Face hub in the hub's local cache, or downloads it (feature `hub`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};

/// The directory of the model `ORG/NAME` at its `main` revision, complete; downloaded when it is not in the cache.
/// `cache_dir` is the folder of the `models--ORG--NAME` folders.
///
/// # Errors
/// User errors that say what to do: the model is not cached and this build, or `offline`, forbids to ask the hub; the
/// hub does not know it, or the download failed.
pub fn resolve(id: &str, cache_dir: &Path, offline: bool) -> Result<PathBuf> {
    if let Some(dir) = find(id, cache_dir) {
        return Ok(dir);
    }
    let hint = "give a model directory instead, or put the model into the cache with the hub's own tools";
    let missing = format!(
        "there is no directory {id}, and model {id} is not, or not completely, in the hub's cache {}",
        cache_dir.display()
    );
    if offline {
        return Err(Error::user(format!("{missing}, and HF_HUB_OFFLINE is set: {hint}")));
    }
    fetch(id, cache_dir).map_err(|why| Error::user(format!("{missing}, and {why}: {hint}")))?;
    find(id, cache_dir).ok_or_else(|| Error::user(format!("{missing}, also after a download: {hint}")))
}

/// `models--ORG--NAME/snapshots/<what refs/main says>`, if all that serving needs is in it.
fn find(id: &str, cache_dir: &Path) -> Option<PathBuf> {
    let model = cache_dir.join(format!("models--{}", id.replace('/', "--")));
    let revision = fs::read_to_string(model.join("refs/main")).ok()?;
    let dir = model.join("snapshots").join(revision.trim());
    let complete = dir.join("config.json").exists() && dir.join("tokenizer.json").exists() && has_weights(&dir);
    complete.then_some(dir)
}

fn has_weights(dir: &Path) -> bool {
    dir.join("model.safetensors").exists() || all_shards(dir).unwrap_or(false)
}

/// `None` without a readable index.
fn all_shards(dir: &Path) -> Option<bool> {
    let index = fs::read(dir.join("model.safetensors.index.json")).ok()?;
    let index: Value = serde_json::from_slice(&index).ok()?;
    let files: BTreeSet<&str> = index.get("weight_map")?.as_object()?.values().filter_map(Value::as_str).collect();
    Some(!files.is_empty() && files.iter().all(|f| dir.join(f).exists()))
}

#[cfg(not(feature = "hub"))]
fn fetch(_id: &str, _cache_dir: &Path) -> Result<(), String> {
    Err("this build cannot download (it was built without the feature `hub`)".into())
}

#[cfg(feature = "hub")]
fn fetch(id: &str, cache_dir: &Path) -> Result<(), String> {
    download::model(id, cache_dir).map_err(|e| format!("the download failed: {e}"))
}

#[cfg(feature = "hub")]
mod download {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use hf_hub::Cache;
    use hf_hub::api::Progress;
    use hf_hub::api::sync::{ApiBuilder, ApiError};

    /// Fetches what a model needs into the cache; what is there of this revision stays.
    pub fn model(id: &str, cache_dir: &Path) -> Result<(), ApiError> {
        let cache_dir = std::path::absolute(cache_dir)?;
        let api = ApiBuilder::from_cache(Cache::new(cache_dir.clone())).with_progress(false).with_retries(3).build()?;
        let repo = api.model(id.to_owned());
        let info = repo.info()?;
        let snapshot = Cache::new(cache_dir).model(id.to_owned()).pointer_path(&info.sha);
        for file in info.siblings.iter().map(|s| s.rfilename.as_str()).filter(|f| is_needed(f)) {
            if !snapshot.join(file).exists() {
                repo.download_with_progress(file, Log::new(id))?;
            }
        }
        Ok(())
    }

    /// Configuration, tokenizer and Transformers' weights; no other formats, no files in subfolders.
    pub fn is_needed(file: &str) -> bool {
        let tokenizer = ["vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"];
        matches!(file, "config.json" | "generation_config.json" | "model.safetensors.index.json")
            || tokenizer.contains(&file)
            || (file.starts_with("model") && file.ends_with(".safetensors") && !file.contains('/'))
            || ((file.starts_with("tokenizer") || file.starts_with("chat_template")) && !file.contains('/'))
    }

    /// Progress as log lines, one per file and every few seconds.
    struct Log {
        model: String,
        file: String,
        size: usize,
        done: usize,
        said: Instant,
    }

    impl Log {
        const INTERVAL: Duration = Duration::from_secs(3);

        fn new(model: &str) -> Self {
            Self { model: model.into(), file: String::new(), size: 0, done: 0, said: Instant::now() }
        }

        fn say(&mut self) {
            self.said = Instant::now();
            let percent = 100 * self.done / self.size.max(1);
            tracing::info!(model = self.model, file = self.file, bytes = self.done, size = self.size, "{percent} %");
        }
    }

    impl Progress for Log {
        /// Called again, with the position as the first update, when a download is resumed.
        fn init(&mut self, size: usize, file: &str) {
            (self.file, self.size, self.done) = (file.into(), size, 0);
        }

        fn update(&mut self, size: usize) {
            self.done += size;
            if self.said.elapsed() > Self::INTERVAL {
                self.say();
            }
        }

        fn finish(&mut self) {
            self.say();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const SNAPSHOT: &str = "models--org--name/snapshots/abc";

    fn cache(files: &[(&str, &str)]) -> TempDir {
        let cache = tempfile::tempdir().unwrap();
        let (refs, snapshot) = (cache.path().join("models--org--name/refs"), cache.path().join(SNAPSHOT));
        fs::create_dir_all(&refs).unwrap();
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(refs.join("main"), "abc\n").unwrap();
        for (name, text) in files {
            fs::write(snapshot.join(name), text).unwrap();
        }
        cache
    }

    const COMMON: [(&str, &str); 2] = [("config.json", "{}"), ("tokenizer.json", "{}")];
    const INDEX: (&str, &str) =
        ("model.safetensors.index.json", r#"{"weight_map": {"a": "m1.safetensors", "b": "m2.safetensors"}}"#);

    #[test]
    fn a_complete_snapshot_is_found() {
        let single = cache(&[COMMON[0], COMMON[1], ("model.safetensors", "")]);
        assert_eq!(resolve("org/name", single.path(), true).unwrap(), single.path().join(SNAPSHOT));
        let shards = cache(&[COMMON[0], COMMON[1], INDEX, ("m1.safetensors", ""), ("m2.safetensors", "")]);
        assert_eq!(resolve("org/name", shards.path(), true).unwrap(), shards.path().join(SNAPSHOT));
    }

    #[test]
    fn an_incomplete_one_is_not() {
        for files in [
            &COMMON[..],
            &[COMMON[0], ("model.safetensors", "")],
            &[COMMON[0], COMMON[1], INDEX, ("m1.safetensors", "")],
        ] {
            let cache = cache(files);
            let e = resolve("org/name", cache.path(), true).unwrap_err();
            assert!(e.message.contains("model org/name is not") && e.message.contains("HF_HUB_OFFLINE"), "{e}");
        }
    }

    #[cfg(not(feature = "hub"))]
    #[test]
    fn a_build_without_downloads_says_what_to_do() {
        let e = resolve("org/other", tempfile::tempdir().unwrap().path(), false).unwrap_err();
        assert!(e.message.contains("feature `hub`") && e.message.contains("give a model directory"), "{e}");
    }

    #[cfg(feature = "hub")]
    #[test]
    fn only_what_serving_needs_is_fetched() {
        let needed =
            ["config.json", "tokenizer_config.json", "model-00001-of-00002.safetensors", "chat_template.jinja"];
        assert!(needed.iter().all(|f| download::is_needed(f)));
        let other = ["pytorch_model.bin", "onnx/model.safetensors", "consolidated.safetensors", "README.md"];
        assert!(!other.iter().any(|f| download::is_needed(f)));
    }
}
