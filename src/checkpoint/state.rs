//! What makes a directory a checkpoint: the manifest `tinderbox.json`, and the optimiser's state for training.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checksum::{self, Checksums};
use super::tensors::{self, NamedArray, Reader};
use super::{Kind, Layout, Manifest, Optimizer, OptimizerInfo, write};
use crate::command::LoraConfig;
use crate::error::{Error, Result};

const MANIFEST: &str = "tinderbox.json";
const OPTIMIZER: &str = "optimizer.safetensors";
/// Of the manifest; a reader refuses what is newer.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct ManifestFile {
    format: u32,
    base_model: String,
    /// Absent for a full model.
    #[serde(skip_serializing_if = "Option::is_none")]
    lora: Option<LoraFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    optimizer: Option<OptimizerFile>,
    /// Of the files with arrays. Absent in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Checksums::is_empty")]
    crc32: Checksums,
}

#[derive(Serialize, Deserialize)]
struct LoraFile {
    rank: usize,
    alpha: f32,
    seed: u64,
    train_attn: bool,
    train_mlp: bool,
    train_unembed: bool,
}

#[derive(Serialize, Deserialize)]
struct OptimizerFile {
    #[serde(rename = "type")]
    kind: OptimizerType,
    step: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OptimizerType {
    AdamW,
}

/// To be called when the arrays are written: their checksums are taken.
pub fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<()> {
    let lora = match manifest.kind {
        Kind::Full => None,
        Kind::Lora { config, alpha } => {
            let LoraConfig { rank, seed, train_attn, train_mlp, train_unembed } = config;
            Some(LoraFile { rank, alpha, seed, train_attn, train_mlp, train_unembed })
        }
    };
    let optimizer = manifest.optimizer.map(|o| OptimizerFile { kind: OptimizerType::AdamW, step: o.step });
    let base_model = manifest.base_model.clone();
    let crc32 = checksum::of_arrays(dir)?;
    write::json(&dir.join(MANIFEST), &ManifestFile { format: FORMAT, base_model, lora, optimizer, crc32 })
}

/// # Errors
/// Not found, when there is no manifest; a server error when it is damaged or of a newer format.
pub fn read_manifest(dir: &Path) -> Result<Manifest> {
    let path = dir.join(MANIFEST);
    if !path.exists() {
        return Err(Error::not_found("there is no such checkpoint"));
    }
    let json = write::read_json(&path)?;
    if json["format"].as_u64().is_some_and(|f| f > u64::from(FORMAT)) {
        let format = &json["format"];
        return Err(Error::server(format!("{}: format {format}, this version reads {FORMAT}", path.display())));
    }
    let file: ManifestFile =
        serde_json::from_value(json).map_err(|e| Error::server(format!("{} is damaged: {e}", path.display())))?;
    let kind = match file.lora {
        None => Kind::Full,
        Some(LoraFile { rank, alpha, seed, train_attn, train_mlp, train_unembed }) => {
            Kind::Lora { config: LoraConfig { rank, seed, train_attn, train_mlp, train_unembed }, alpha }
        }
    };
    let optimizer = file.optimizer.map(|o| OptimizerInfo { step: o.step });
    Ok(Manifest { base_model: file.base_model, kind, optimizer })
}

/// Compares the arrays' files with their checksums; the optimiser's only when it is read.
///
/// # Errors
/// Server errors that name the file.
pub fn verify(dir: &Path, optimizer: bool) -> Result<()> {
    let json = write::read_json(&dir.join(MANIFEST))?;
    let mut sums: Checksums = serde_json::from_value(json["crc32"].clone()).unwrap_or_default();
    sums.retain(|name, _| optimizer || name != OPTIMIZER);
    checksum::verify(dir, &sums)
}

/// Both moments in one file, as `m.<name>` and `v.<name>`.
pub fn write_optimizer(dir: &Path, optimizer: &Optimizer) -> Result<()> {
    let (m, v) = (keyed('m', &optimizer.m), keyed('v', &optimizer.v));
    tensors::write(&dir.join(OPTIMIZER), m.chain(v))
}

fn keyed(moment: char, arrays: &[NamedArray]) -> impl Iterator<Item = (String, &NamedArray)> {
    arrays.iter().map(move |a| (format!("{moment}.{}", a.name), a))
}

/// # Errors
/// A user error when the manifest knows of no optimiser; see `tensors` for the rest.
pub fn read_optimizer(dir: &Path, info: Option<OptimizerInfo>, layout: &Layout) -> Result<Optimizer> {
    let info = info.ok_or_else(|| {
        Error::user("the checkpoint holds no optimizer state: it was saved for sampling, not for training")
    })?;
    let of = |moment: char| layout.iter().map(move |(name, shape)| (format!("{moment}.{name}"), shape.clone()));
    let both: Vec<_> = of('m').chain(of('v')).collect();
    let mut m = tensors::read_all(&mut [Reader::open(&dir.join(OPTIMIZER))?], &both, str::to_owned)?;
    for (array, (name, _)) in m.iter_mut().zip(layout.iter().chain(layout)) {
        array.name.clone_from(name);
    }
    let v = m.split_off(layout.len());
    Ok(Optimizer { step: info.step, m, v })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn lora() -> Manifest {
        let config = LoraConfig { rank: 8, seed: u64::MAX, train_attn: true, train_mlp: false, train_unembed: true };
        Manifest {
            base_model: "org/base".into(),
            kind: Kind::Lora { config, alpha: 32.0 },
            optimizer: Some(OptimizerInfo { step: 12 }),
        }
    }

    #[test]
    fn the_manifest_keeps_every_field() {
        let dir = tempfile::tempdir().unwrap();
        let full = Manifest { base_model: "b".into(), kind: Kind::Full, optimizer: None };
        for manifest in [lora(), full] {
            write_manifest(dir.path(), &manifest).unwrap();
            assert_eq!(read_manifest(dir.path()).unwrap(), manifest);
        }
    }

    #[test]
    fn the_manifest_is_plain_json() {
        let dir = tempfile::tempdir().unwrap();
        write_manifest(dir.path(), &lora()).unwrap();
        let json = write::read_json(&dir.path().join(MANIFEST)).unwrap();
        assert_eq!((&json["format"], &json["lora"]["rank"]), (&1.into(), &8.into()));
        assert_eq!((&json["optimizer"]["type"], &json["optimizer"]["step"]), (&"adamw".into(), &12.into()));
    }

    #[test]
    fn damaged_and_newer_manifests_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (text, word) in [
            (r#"{"format": 2, "base_model": "b"}"#, "format 2"),
            (r#"{"format": 1}"#, "base_model"),
            (r#"{"format": 1, "base_model": "b", "optimizer": {"type": "muon", "step": 1}}"#, "muon"),
            ("{", "damaged"),
        ] {
            fs::write(dir.path().join(MANIFEST), text).unwrap();
            let e = read_manifest(dir.path()).unwrap_err();
            assert!(e.message.contains(word) && e.message.contains(MANIFEST), "{e}");
        }
    }
}
