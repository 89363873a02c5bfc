//! Checkpoints on disk: written whole or not at all, in the layouts that PEFT and Transformers load.
//!
//! A checkpoint is a directory:
//! * adapter: `adapter_config.json`, `adapter_model.safetensors` (`peft.rs`);
//! * full model: `config.json`, `model.safetensors` or shards, tokenizer files (`hf.rs`);
//! * for training also `optimizer.safetensors`, and always `tinderbox.json`, which says what it is (`state.rs`).
//!
//! Use: `save` writes one, `manifest` tells what there is, `load` reads it back in the order of a `Layout` that the
//! caller derives from the base model and the manifest. `write::sweep` removes what a killed process left over.
//! Everything here is plain host memory; arrays have names:
//! * adapter: `<module>.lora_A` of (rank, in) and `<module>.lora_B` of (out, rank), module as in
//!   `model.layers.3.self_attn.q_proj` or `lm_head`;
//! * full model: the Transformers tensor names.

pub mod age;
mod checksum;
pub mod hf;
pub mod peft;
pub mod state;
pub mod tensors;
pub mod write;

use std::path::Path;

use crate::command::LoraConfig;
use crate::error::{Error, Result};
use tensors::NamedArray;

/// Names and shapes in canonical order.
pub type Layout = [(String, Vec<usize>)];

/// What a checkpoint is, without its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Served name of the base model.
    pub base_model: String,
    pub kind: Kind,
    /// Present where training can be resumed from this checkpoint.
    pub optimizer: Option<OptimizerInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Adapters act with the factor alpha / rank.
    Lora {
        config: LoraConfig,
        alpha: f32,
    },
    Full,
}

/// The optimiser is AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptimizerInfo {
    /// Steps taken.
    pub step: u64,
}

/// AdamW's state: first and second moment of every weight, named and shaped like the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    pub step: u64,
    pub m: Vec<NamedArray>,
    pub v: Vec<NamedArray>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub base_model: String,
    pub kind: Kind,
    pub weights: Vec<NamedArray>,
    pub optimizer: Option<Optimizer>,
}

impl Checkpoint {
    pub fn manifest(&self) -> Manifest {
        let optimizer = self.optimizer.as_ref().map(|o| OptimizerInfo { step: o.step });
        Manifest { base_model: self.base_model.clone(), kind: self.kind, optimizer }
    }
}

/// Writes `dir`, which must not exist, and returns its size in bytes. `base_dir` is the base model's directory, from
/// which a full model takes its configuration and tokenizer. With recipients every file is age-encrypted and named
/// `.age`.
///
/// # Errors
/// User errors for recipients that are none; server errors that name the path for all else. Nothing is left behind.
pub fn save(dir: &Path, checkpoint: &Checkpoint, base_dir: &Path, recipients: &[String]) -> Result<u64> {
    let recipients = if recipients.is_empty() { None } else { Some(age::recipients(recipients)?) };
    let staging = write::Staging::new(dir)?;
    let at = staging.path();
    match checkpoint.kind {
        Kind::Lora { config, alpha } => {
            peft::write(at, &checkpoint.base_model, config.rank, alpha, &checkpoint.weights)?;
        }
        Kind::Full => hf::write(at, base_dir, &checkpoint.weights, hf::SHARD_BYTES)?,
    }
    if let Some(optimizer) = &checkpoint.optimizer {
        state::write_optimizer(at, optimizer)?;
    }
    state::write_manifest(at, &checkpoint.manifest())?;
    staging.commit(recipients.as_ref())
}

/// Bytes of a checkpoint's files.
pub fn size(dir: &Path) -> Result<u64> {
    std::fs::read_dir(dir)?.try_fold(0, |sum, entry| Ok(sum + entry?.metadata()?.len()))
}

/// Makes `to` a checkpoint of the same files as `from`: no byte is written twice where the file system has hard links, and
/// each outlives the other. Returns the size in bytes.
pub fn share(from: &Path, to: &Path) -> Result<u64> {
    let gone = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => Error::user("the checkpoint was deleted meanwhile"),
        _ => Error::server(format!("cannot copy {}: {e}", from.display())),
    };
    let staging = write::Staging::new(to)?;
    for entry in std::fs::read_dir(from).map_err(gone)? {
        let file = entry.map_err(gone)?;
        let target = staging.path().join(file.file_name());
        if std::fs::hard_link(file.path(), &target).is_err() {
            std::fs::copy(file.path(), &target).map_err(gone)?;
        }
    }
    staging.commit(None)
}

/// What the checkpoint in `dir` is.
///
/// # Errors
/// Not found, when `dir` holds no complete checkpoint.
pub fn manifest(dir: &Path) -> Result<Manifest> {
    state::read_manifest(dir)
}

/// Reads the checkpoint in `dir`, its arrays in the order of `layout`; with `optimizer` also moments and step count.
///
/// # Errors
/// User errors when the layout does not fit, naming the arrays, and when `optimizer` is asked of a checkpoint that was
/// saved without; server errors when files are damaged. Never part of a state.
pub fn load(dir: &Path, layout: &Layout, optimizer: bool) -> Result<Checkpoint> {
    let Manifest { base_model, kind, optimizer: info } = manifest(dir)?;
    state::verify(dir, optimizer)?;
    let optimizer = if optimizer { Some(state::read_optimizer(dir, info, layout)?) } else { None };
    let weights = match kind {
        Kind::Lora { config, alpha } => peft::read(dir, config.rank, alpha, layout)?,
        Kind::Full => hf::read(dir, layout)?,
    };
    Ok(Checkpoint { base_model, kind, weights, optimizer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Category;
    use std::fs;

    pub(super) fn array(name: &str, shape: &[usize], start: f32) -> NamedArray {
        let n = shape.iter().product::<usize>();
        NamedArray { name: name.into(), shape: shape.into(), data: (0..n).map(|i| start + i as f32 / 7.0).collect() }
    }

    pub(super) fn layout(arrays: &[NamedArray]) -> Vec<(String, Vec<usize>)> {
        arrays.iter().map(|a| (a.name.clone(), a.shape.clone())).collect()
    }

    fn adapter(optimizer: bool) -> Checkpoint {
        let arrays = |x: f32| {
            let q = "model.layers.0.self_attn.q_proj";
            vec![
                array(&format!("{q}.lora_A"), &[2, 3], x),
                array(&format!("{q}.lora_B"), &[5, 2], 2.0 * x),
                array("lm_head.lora_A", &[2, 3], -x),
                array("lm_head.lora_B", &[7, 2], x - 1.0),
            ]
        };
        let config = LoraConfig { rank: 2, seed: u64::MAX, train_attn: true, train_mlp: false, train_unembed: true };
        let mut weights = arrays(1.0);
        // Values that a detour through text or another type would lose.
        weights[0].data[..4].copy_from_slice(&[-0.0, f32::MIN_POSITIVE / 2.0, f32::MAX, 1.0 + f32::EPSILON]);
        let optimizer = optimizer.then(|| Optimizer { step: 3, m: arrays(0.1), v: arrays(1e-30) });
        Checkpoint { base_model: "org/base".into(), kind: Kind::Lora { config, alpha: 32.0 }, weights, optimizer }
    }

    fn bits(arrays: &[NamedArray]) -> Vec<u32> {
        arrays.iter().flat_map(|a| a.data.iter().map(|x| x.to_bits())).collect()
    }

    #[test]
    fn training_state_comes_back_bit_for_bit() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("run/weights/a");
        let saved = adapter(true);
        let size = save(&dir, &saved, root.path(), &[]).unwrap();
        let on_disk: u64 = fs::read_dir(&dir).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(size, on_disk);
        assert_eq!(manifest(&dir).unwrap(), saved.manifest());
        let loaded = load(&dir, &layout(&saved.weights), true).unwrap();
        assert_eq!(loaded, saved);
        assert_eq!(bits(&loaded.weights), bits(&saved.weights));
        assert_eq!(fs::read_dir(dir.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn the_order_is_the_layouts() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        let saved = adapter(true);
        save(&dir, &saved, root.path(), &[]).unwrap();
        let mut order = layout(&saved.weights);
        order.reverse();
        let loaded = load(&dir, &order, true).unwrap();
        assert_eq!(layout(&loaded.weights), order);
        assert_eq!(layout(&loaded.optimizer.unwrap().v), order);
        assert_eq!(loaded.weights[3], saved.weights[0]);
    }

    #[test]
    fn weights_alone_can_be_loaded_but_never_pass_for_a_full_state() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        let saved = adapter(false);
        save(&dir, &saved, root.path(), &[]).unwrap();
        let layout = layout(&saved.weights);
        assert_eq!(load(&dir, &layout, false).unwrap(), saved);
        let e = load(&dir, &layout, true).unwrap_err();
        assert_eq!(e.category, Category::User);
        assert!(e.message.contains("no optimizer state"), "{e}");
    }

    #[test]
    fn a_lost_or_damaged_optimizer_file_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        let saved = adapter(true);
        save(&dir, &saved, root.path(), &[]).unwrap();
        let layout = layout(&saved.weights);
        let path = dir.join("optimizer.safetensors");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 4]).unwrap();
        let e = load(&dir, &layout, true).unwrap_err();
        assert!(e.category == Category::Server && e.message.contains("optimizer.safetensors"), "{e}");
        fs::remove_file(&path).unwrap();
        let e = load(&dir, &layout, true).unwrap_err();
        assert!(e.category == Category::Server && e.message.contains("optimizer.safetensors"), "{e}");
        let weights = load(&dir, &layout, false).unwrap();
        assert_eq!((weights.weights, weights.optimizer), (saved.weights, None));
    }

    #[test]
    fn an_absent_checkpoint_is_not_found() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(load(&root.path().join("none"), &[], false).unwrap_err().category, Category::NotFound);
    }

    #[test]
    fn with_recipients_nothing_is_left_in_plain() {
        let root = tempfile::tempdir().unwrap();
        let (plain, secret) = (root.path().join("plain"), root.path().join("secret"));
        let identity = ::age::x25519::Identity::generate();
        save(&plain, &adapter(false), root.path(), &[]).unwrap();
        save(&secret, &adapter(false), root.path(), &[identity.to_public().to_string()]).unwrap();
        assert_eq!(fs::read_dir(&secret).unwrap().count(), 3);
        for file in fs::read_dir(&plain).unwrap() {
            let file = file.unwrap();
            let encrypted = secret.join(format!("{}.age", file.file_name().to_str().unwrap()));
            let decrypted = ::age::decrypt(&identity, &fs::read(encrypted).unwrap()).unwrap();
            assert!(decrypted == fs::read(file.path()).unwrap(), "{file:?}");
        }
    }

    #[test]
    fn a_recipient_that_is_none_is_the_users_error_and_writes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let e = save(&root.path().join("a"), &adapter(false), root.path(), &["age1nonsense".into()]).unwrap_err();
        assert_eq!(e.category, Category::User);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_existing_directory_is_never_touched() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        save(&dir, &adapter(true), root.path(), &[]).unwrap();
        let e = save(&dir, &adapter(false), root.path(), &[]).unwrap_err();
        assert!(e.message.contains("exists already"), "{e}");
        assert!(manifest(&dir).unwrap().optimizer.is_some());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
