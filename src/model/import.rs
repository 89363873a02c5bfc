//! Reads a model's weights from the safetensors files of a Transformers directory.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::kernels::room;
use crate::model::config::DecoderConfig;
use crate::model::params::Param;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Names listed in an error before the rest is only counted.
const LISTED: usize = 5;

/// An open model directory in which every parameter was found with the right shape and a readable dtype.
pub struct Import {
    shards: Vec<Mmap>,
    params: HashMap<Param, Located>,
}

/// Where a tensor's bytes are. Their start need not be aligned to their type.
#[derive(Clone)]
struct Located {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Bytes of the file.
    start: usize,
    end: usize,
}

impl Import {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` lists, and checks that all the
    /// parameters of `config` are there.
    ///
    /// # Errors
    /// User errors that name the file, or what is missing or misshapen. Tensors that the decoder has no use for are
    /// logged and ignored; so is the `lm_head` of a tied model.
    pub fn open(dir: &Path, config: &DecoderConfig) -> Result<Self> {
        let files = weight_files(dir)?;
        let mut shards = Vec::with_capacity(files.len());
        let mut found = HashMap::new();
        for (shard, path) in files.iter().enumerate() {
            let map = map_file(path)?;
            for (name, located) in header(&map, shard).map_err(|e| Error::user(format!("{}: {e}", path.display())))? {
                if let Some(first) = found.insert(name.clone(), located) {
                    let other = files[first.shard].display();
                    return Err(Error::user(format!("tensor {name} is in two files: {other} and {}", path.display())));
                }
            }
            shards.push(map);
        }
        let params = locate(config, &mut found, &files).map_err(|e| e.context(dir.display()))?;
        warn_unused(dir, config, &found);
        Ok(Self { shards, params })
    }

    /// A parameter's values, row-major, as f32.
    ///
    /// # Errors
    /// When this decoder has no such parameter (the head of a tied model).
    pub fn read(&self, param: Param) -> Result<Vec<f32>> {
        let unknown = || Error::server(format!("{} is not a parameter of this model", param.hf_name()));
        let at = self.params.get(&param).ok_or_else(unknown)?;
        let map = &self.shards[at.shard];
        let values = to_f32(&map[at.start..at.end], at.dtype);
        drop_pages(map, at);
        Ok(values)
    }
}

/// The files that hold weights: the single one when it exists, else the index's shards in order of name.
fn weight_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let single = dir.join(SINGLE);
    if single.exists() {
        return Ok(vec![single]);
    }
    let index = dir.join(INDEX);
    if !index.exists() {
        let pickled = dir.join("pytorch_model.bin").exists() || dir.join("pytorch_model.bin.index.json").exists();
        let hint = if pickled { "; PyTorch's own format is not read, convert it to safetensors" } else { "" };
        let dir = dir.display();
        return Err(Error::user(format!("{dir}: no model weights: neither {SINGLE} nor {INDEX} is there{hint}")));
    }
    let bad = |why: String| Error::user(format!("{}: {why}", index.display()));
    let json: Value = serde_json::from_slice(&std::fs::read(&index).map_err(|e| bad(e.to_string()))?)
        .map_err(|e| bad(format!("not valid JSON: {e}")))?;
    let map = json["weight_map"].as_object().ok_or_else(|| bad("no weight_map".into()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let file = file.as_str().filter(|f| is_plain_name(f));
        names.insert(file.ok_or_else(|| bad(format!("the file of {tensor} is not a plain file name")))?);
    }
    let missing: Vec<_> = names.iter().filter(|n| !dir.join(n).exists()).map(|n| n.to_string()).collect();
    if !missing.is_empty() {
        return Err(bad(format!("{} of {} listed files missing: {}", missing.len(), names.len(), some(&missing))));
    }
    Ok(names.into_iter().map(|n| dir.join(n)).collect())
}

fn is_plain_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|f| f == name)
}

fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(|e| Error::user(format!("cannot open {}: {e}", path.display())))?;
    // SAFETY: the map is only ever read as bytes, for which every bit pattern is valid. That nobody shortens or
    // rewrites a model file while it is served is a condition of serving it, as with any program that maps its files.
    unsafe { Mmap::map(&file) }.map_err(|e| Error::user(format!("cannot map {}: {e}", path.display())))
}

/// All tensors of one file. The header's offsets are checked against the file's length.
fn header(map: &Mmap, shard: usize) -> Result<Vec<(String, Located)>, String> {
    let (n, meta) = SafeTensors::read_metadata(map)
        .map_err(|e| format!("not a complete safetensors file ({} bytes): {e}", map.len()))?;
    let data = size_of::<u64>() + n;
    let locate = |info: &safetensors::tensor::TensorInfo| Located {
        shard,
        dtype: info.dtype,
        shape: info.shape.clone(),
        start: data + info.data_offsets.0,
        end: data + info.data_offsets.1,
    };
    Ok(meta.tensors().into_iter().map(|(name, info)| (name, locate(info))).collect())
}

/// Moves the decoder's parameters out of `found`; an error lists all that is wrong, up to a few names each.
fn locate(
    c: &DecoderConfig,
    found: &mut HashMap<String, Located>,
    files: &[PathBuf],
) -> Result<HashMap<Param, Located>> {
    let (mut params, mut missing, mut wrong) = (HashMap::new(), Vec::new(), Vec::new());
    for param in Param::all(c) {
        let name = param.hf_name();
        let short = name.strip_prefix("model.").unwrap_or(&name);
        let Some(at) = found.remove(&name).or_else(|| found.remove(short)) else {
            missing.push(name);
            continue;
        };
        let want = param.file_shape(c);
        let file = files[at.shard].file_name().unwrap_or_default().display();
        if at.shape != want {
            wrong.push(format!("{name} in {file} has shape {:?}, config.json asks for {want:?}", at.shape));
        } else if !matches!(at.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            wrong.push(format!("{name} in {file} has dtype {}, supported are F32, F16, BF16", at.dtype));
        } else {
            params.insert(param, at);
        }
    }
    let mut problems = Vec::new();
    if !missing.is_empty() {
        problems.push(format!("{} tensors missing: {}", missing.len(), some(&missing)));
    }
    if !wrong.is_empty() {
        problems.push(some(&wrong));
    }
    if problems.is_empty() { Ok(params) } else { Err(Error::user(problems.join("; "))) }
}

/// The first few, and how many more.
fn some(names: &[String]) -> String {
    let listed = names[..names.len().min(LISTED)].join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

fn warn_unused(dir: &Path, c: &DecoderConfig, left: &HashMap<String, Located>) {
    let expected = |n: &str| n.ends_with("rotary_emb.inv_freq") || (c.tied_embeddings && n == "lm_head.weight");
    let mut names: Vec<String> = left.keys().filter(|n| !expected(n)).cloned().collect();
    if !names.is_empty() {
        names.sort();
        tracing::warn!(dir = %dir.display(), "{} tensors are not used: {}", names.len(), some(&names));
    }
}

/// Little-endian bytes of a checked dtype, at any alignment.
fn to_f32(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    let mut out = room(8 * bytes.len() / dtype.bitsize());
    match dtype {
        Dtype::BF16 => {
            out.extend(bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)))
        }
        Dtype::F16 => f16_to_f32(bytes, &mut out),
        _ => out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
    }
    out
}

/// In blocks, so that the processor's own conversion is used where it has one.
fn f16_to_f32(bytes: &[u8], out: &mut Vec<f32>) {
    use half::slice::HalfFloatSliceExt;
    const BLOCK: usize = 4096;
    out.resize(bytes.len() / 2, 0.0);
    let mut block = [half::f16::ZERO; BLOCK];
    for (bytes, out) in bytes.chunks(2 * BLOCK).zip(out.chunks_mut(BLOCK)) {
        let block = &mut block[..out.len()];
        for (h, b) in block.iter_mut().zip(bytes.chunks_exact(2)) {
            *h = half::f16::from_le_bytes([b[0], b[1]]);
        }
        block.convert_to_f32_slice(out);
    }
}

/// Gives the tensor's pages back, so that a loaded model is not in memory twice.
fn drop_pages(map: &Mmap, at: &Located) {
    #[cfg(unix)]
    {
        // SAFETY: the map is a read-only view of a file: a dropped page is read from it again when touched.
        let dropped =
            unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at.start, at.end - at.start) };
        if let Err(e) = dropped {
            tracing::debug!("madvise: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::tests::tiny;
    use crate::model::params::LayerParam;
    use crate::model::testing::{model, sharded, tensors};

    fn refusal(dir: &Path) -> String {
        let e = Import::open(dir, &tiny()).err().expect("the directory must be refused");
        assert_eq!(e.category, crate::error::Category::User);
        e.message
    }

    #[test]
    fn every_parameter_is_read_back() {
        let c = tiny();
        let dir = model(&tensors(&c));
        let import = Import::open(dir.path(), &c).unwrap();
        for (p, param) in Param::all(&c).into_iter().enumerate() {
            let want: Vec<f32> = (0..param.num_elements(&c)).map(|i| p as f32 + i as f32 / 1000.0).collect();
            assert_eq!(import.read(param).unwrap(), want, "{param:?}");
        }
    }

    #[test]
    fn names_without_the_model_prefix_are_found() {
        let mut all = tensors(&tiny());
        for t in &mut all {
            t.0 = t.0.trim_start_matches("model.").into();
        }
        assert!(Import::open(model(&all).path(), &tiny()).is_ok());
    }

    #[test]
    fn half_precision_is_widened_exactly() {
        let halves = [0x3c00u16, 0xc100, 0x0001, 0x7bff];
        let bytes: Vec<u8> = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
        assert_eq!(to_f32(&bytes, Dtype::F16), [1.0, -2.5, 2f32.powi(-24), 65504.0]);
        let brains = [0x3f80u16, 0xc020, 0x4049];
        let bytes: Vec<u8> = brains.iter().flat_map(|h| h.to_le_bytes()).collect();
        assert_eq!(to_f32(&bytes, Dtype::BF16), [1.0, -2.5, 3.140625]);
    }

    #[test]
    fn f16_blocks_join_without_a_seam() {
        let bytes: Vec<u8> =
            (0..10_000u32).flat_map(|i| half::f16::from_f32((i % 2048) as f32).to_le_bytes()).collect();
        let out = to_f32(&bytes, Dtype::F16);
        assert!(out.len() == 10_000 && out.iter().enumerate().all(|(i, v)| *v == (i % 2048) as f32));
    }

    /// A header whose length is odd puts every tensor at an odd address.
    #[test]
    fn unaligned_data_is_read() {
        let c = tiny();
        let dir = model(&tensors(&c));
        let path = dir.path().join(SINGLE);
        let file = std::fs::read(&path).unwrap();
        let n = u64::from_le_bytes(file[..8].try_into().unwrap());
        let mut odd = (n + 1).to_le_bytes().to_vec();
        odd.extend_from_slice(&file[8..8 + n as usize]);
        odd.push(b' ');
        odd.extend_from_slice(&file[8 + n as usize..]);
        std::fs::write(&path, odd).unwrap();
        let norm = Import::open(dir.path(), &c).unwrap().read(Param::FinalNorm).unwrap();
        assert_eq!(norm[..3], [19.0, 19.001, 19.002]);
    }

    #[test]
    fn shards_are_read_through_their_index() {
        let dir = sharded();
        let import = Import::open(dir.path(), &tiny()).unwrap();
        assert_eq!(import.read(Param::Embed).unwrap()[1], 0.001);
        assert_eq!(import.read(Param::Head).unwrap()[0], 20.0);
    }

    #[test]
    fn a_missing_shard_is_named() {
        let dir = sharded();
        std::fs::remove_file(dir.path().join("b.safetensors")).unwrap();
        let message = refusal(dir.path());
        assert!(message.contains("1 of 2 listed files missing: b.safetensors"), "{message}");
    }

    #[test]
    fn a_shard_outside_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(INDEX), r#"{"weight_map": {"lm_head.weight": "../x.safetensors"}}"#).unwrap();
        assert!(refusal(dir.path()).contains("plain file name"));
    }

    #[test]
    fn what_is_missing_or_misshapen_is_listed() {
        let all = tensors(&tiny());
        let message = refusal(model(&all[..12]).path());
        assert!(message.contains("9 tensors missing: model.layers.1.self_attn.k_proj.weight"), "{message}");
        assert!(message.contains("and 4 more"), "{message}");
        let mut all = all;
        all[0].2 = vec![8, 16];
        let message = refusal(model(&all).path());
        assert!(message.contains("model.embed_tokens.weight in model.safetensors has shape [8, 16]"), "{message}");
        all[0].2 = vec![16, 8];
        all[0].1 = Dtype::I32;
        let message = refusal(model(&all).path());
        assert!(message.contains("dtype I32"), "{message}");
        let message = refusal(tempfile::tempdir().unwrap().path());
        assert!(message.contains("neither model.safetensors nor"), "{message}");
    }

    #[test]
    fn truncated_and_corrupt_files_are_errors() {
        let dir = model(&tensors(&tiny()));
        let path = dir.path().join(SINGLE);
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 5, 8, 100, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let message = refusal(dir.path());
            assert!(message.contains("model.safetensors: not a complete"), "{cut}: {message}");
        }
        let mut garbled = whole;
        garbled[10..60].fill(b'#');
        std::fs::write(&path, garbled).unwrap();
        assert!(refusal(dir.path()).contains("not a complete"));
    }

    #[test]
    fn the_head_is_needed_exactly_when_it_is_not_tied() {
        let c = tiny();
        let all = tensors(&c);
        let without = model(&all[..all.len() - 1]);
        assert!(refusal(without.path()).contains("1 tensors missing: lm_head.weight"));
        let tied = DecoderConfig { tied_embeddings: true, ..c };
        let import = Import::open(without.path(), &tied).unwrap();
        assert!(import.read(Param::Head).is_err());
        let import = Import::open(model(&all).path(), &tied).unwrap();
        assert_eq!(import.read(Param::Layer(0, LayerParam::InputNorm)).unwrap()[0], 1.0);
    }
}
