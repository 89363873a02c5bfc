//! An adapter in PEFT's layout, trained elsewhere, becomes a checkpoint that runs start from and samplers read.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::Dtype;

use super::adapter_config::CONFIG;
use crate::checkpoint::tensors::{NamedArray, Reader};
use crate::checkpoint::{self, Checkpoint, Kind};
use crate::command::LoraConfig;
use crate::error::{Category, Error, Result};
use crate::model::config::DecoderConfig;
use crate::model::params::{Proj, Site};
use crate::model::weights::{Adapter, LORA_ALPHA};

pub use super::adapter_config::AdapterConfig;

const WEIGHTS: &str = "adapter_model.safetensors";

/// Problems listed in an error before the rest is only counted.
const LISTED: usize = 5;

/// The base model an adapter is for.
pub struct Base<'a> {
    pub name: &'a str,
    pub dir: &'a Path,
    /// Of this server.
    pub max_rank: usize,
}

/// The announced files, which must be an adapter's two.
pub fn expected_files(files: &[(String, u64)]) -> Result<HashMap<String, u64>> {
    let sizes: HashMap<String, u64> = files.iter().cloned().collect();
    let others: Vec<&str> = sizes.keys().map(String::as_str).filter(|n| ![CONFIG, WEIGHTS].contains(n)).collect();
    if !others.is_empty() || sizes.len() != 2 || files.len() != 2 {
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        return Err(Error::user(format!(
            "files are {names:?}; an adapter is uploaded as {CONFIG} and {WEIGHTS}, nothing else"
        )));
    }
    match files.iter().find(|(_, size)| *size == 0) {
        Some((name, _)) => Err(Error::user(format!("{name}: size_bytes is 0"))),
        None => Ok(sizes),
    }
}

/// Writes the adapter in `from` as a checkpoint into `to`, which must not exist. The product B·A keeps its scale;
/// matrices the adapter lacks start as those of a new run, which leaves what it computes as it is.
///
/// # Errors
/// User errors that name what does not fit: the rank, a module, a shape, a type, a value.
pub fn adopt(config: &AdapterConfig, from: &Path, to: &Path, base: &Base<'_>) -> Result<(LoraConfig, u64)> {
    if config.rank > base.max_rank {
        let (rank, limit) = (config.rank, base.max_rank);
        return Err(Error::user(format!("{CONFIG}: r is {rank}; the limit of this server is {limit}")));
    }
    let decoder = DecoderConfig::from_dir(base.dir)?;
    let mut file = Reader::open(&from.join(WEIGHTS)).map_err(|e| named(&e))?;
    let sites: BTreeMap<String, Site> =
        Site::chosen(&decoder, true, true, true).into_iter().map(|site| (site.module(), site)).collect();
    let modules = modules(&file, &sites, config, &decoder)?;
    let has = |wanted: fn(&Site) -> bool| modules.iter().any(|module| wanted(&sites[module]));
    let lora = LoraConfig {
        rank: config.rank,
        seed: 0,
        train_attn: has(|site| matches!(site, Site::Layer(_, p) if Proj::ATTENTION.contains(p))),
        train_mlp: has(|site| matches!(site, Site::Layer(_, p) if Proj::MLP.contains(p))),
        train_unembed: has(|site| matches!(site, Site::Head)),
    };
    let factor = config.scale * config.rank as f64 / f64::from(LORA_ALPHA);
    let mut weights = Vec::new();
    for site in Site::chosen(&decoder, lora.train_attn, lora.train_mlp, lora.train_unembed) {
        let (module, (inputs, outputs)) = (site.module(), site.sizes(&decoder));
        let (a, b) = if modules.contains(&module) {
            let a = finite(&mut file, &key(&module, 'A'))?;
            let b = finite(&mut file, &key(&module, 'B'))?;
            (a, scaled(&b, factor).map_err(|x| too_large(&key(&module, 'B'), x, factor))?)
        } else {
            (Adapter::initial_a(&lora, site, &decoder), vec![0.0; outputs * lora.rank])
        };
        weights.push(NamedArray { name: format!("{module}.lora_A"), shape: vec![lora.rank, inputs], data: a });
        weights.push(NamedArray { name: format!("{module}.lora_B"), shape: vec![outputs, lora.rank], data: b });
    }
    let kind = Kind::Lora { config: lora, alpha: LORA_ALPHA };
    let checkpoint = Checkpoint { base_model: base.name.into(), kind, weights, optimizer: None };
    Ok((lora, checkpoint::save(to, &checkpoint, base.dir, &[])?))
}

/// The modules that the file has both matrices for; every array of it must be one of these.
fn modules(
    file: &Reader,
    sites: &BTreeMap<String, Site>,
    config: &AdapterConfig,
    decoder: &DecoderConfig,
) -> Result<Vec<String>> {
    let (mut halves, mut problems) = (BTreeMap::<&str, Vec<char>>::new(), Vec::new());
    for (name, info) in file.arrays() {
        let Some((module, matrix)) = parse(name) else {
            problems.push(format!("{name} is no matrix of a LoRA adapter"));
            continue;
        };
        let Some(site) = sites.get(module) else {
            problems.push(format!("{name}: the base model has no module {module} that takes an adapter"));
            continue;
        };
        let (inputs, outputs) = site.sizes(decoder);
        let shape = if matrix == 'A' { [config.rank, inputs] } else { [outputs, config.rank] };
        if info.shape != shape {
            problems.push(format!("{name} has shape {:?}; rank and base model need {shape:?}", info.shape));
        } else if ![Dtype::F32, Dtype::BF16, Dtype::F16].contains(&info.dtype) {
            problems.push(format!("{name} has dtype {}; F32, BF16 and F16 are accepted", info.dtype));
        }
        halves.entry(module).or_default().push(matrix);
    }
    for (module, found) in &halves {
        if let [only] = found[..] {
            problems.push(format!("{module} has a lora_{only} alone"));
        }
    }
    for target in config.target_modules.iter().flatten() {
        if !halves.keys().any(|module| is_named(module, target)) {
            problems.push(format!("target_modules names {target}, for which there is no matrix"));
        }
    }
    if halves.is_empty() && problems.is_empty() {
        problems.push("it holds no matrix".into());
    }
    if problems.is_empty() {
        return Ok(halves.into_keys().map(str::to_owned).collect());
    }
    let more = problems.len().saturating_sub(LISTED);
    problems.truncate(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(Error::user(format!("{WEIGHTS} does not fit: {}{more}", problems.join("; "))))
}

/// `base_model.model.<module>.lora_A.weight` → module and matrix.
fn parse(name: &str) -> Option<(&str, char)> {
    let rest = name.strip_prefix("base_model.model.")?.strip_suffix(".weight")?;
    let module = |matrix| rest.strip_suffix(matrix);
    module(".lora_A").map(|m| (m, 'A')).or_else(|| module(".lora_B").map(|m| (m, 'B')))
}

fn key(module: &str, matrix: char) -> String {
    format!("base_model.model.{module}.lora_{matrix}.weight")
}

/// PEFT takes a name for a whole path or for the end of one.
fn is_named(module: &str, target: &str) -> bool {
    module == target || module.strip_suffix(target).is_some_and(|rest| rest.ends_with('.'))
}

fn finite(file: &mut Reader, key: &str) -> Result<Vec<f32>> {
    let values = file.read(key)?;
    match values.iter().find(|x| !x.is_finite()) {
        Some(x) => Err(Error::user(format!("{WEIGHTS}: {key} holds the value {x}"))),
        None => Ok(values),
    }
}

/// The values times the factor, or the first that float32 cannot hold then.
fn scaled(values: &[f32], factor: f64) -> std::result::Result<Vec<f32>, f32> {
    let one = |x: &f32| Some((f64::from(*x) * factor) as f32).filter(|y| y.is_finite()).ok_or(*x);
    values.iter().map(one).collect()
}

fn too_large(key: &str, x: f32, factor: f64) -> Error {
    Error::user(format!(
        "{WEIGHTS}: {key} holds the value {x}, which is too large for float32 when it is scaled by {factor:e}"
    ))
}

/// A damaged file is the uploader's, and its place on this machine is not for them.
fn named(e: &Error) -> Error {
    let why = e.message.split_once(WEIGHTS).map_or("it cannot be read", |(_, why)| why.trim_start());
    Error { category: Category::User, message: format!("{WEIGHTS} {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tensors;
    use tempfile::TempDir;

    /// A base model with its configuration alone: hidden size 16 or whatever the file says.
    fn base() -> (Base<'static>, DecoderConfig) {
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/llama"));
        (Base { name: "tiny", dir, max_rank: 64 }, DecoderConfig::from_dir(dir).unwrap())
    }

    fn config(rank: usize, scale: f64, targets: &[&str]) -> AdapterConfig {
        let target_modules = Some(targets.iter().map(|t| t.to_string()).collect());
        AdapterConfig { rank, scale, base_model: None, target_modules }
    }

    fn array(name: &str, shape: [usize; 2], value: f32) -> NamedArray {
        NamedArray { name: name.into(), shape: shape.into(), data: vec![value; shape[0] * shape[1]] }
    }

    /// An adapter of rank 2 on the first layer's q_proj.
    fn q_proj(decoder: &DecoderConfig) -> Vec<NamedArray> {
        let (inputs, outputs) = Site::Layer(0, Proj::Q).sizes(decoder);
        let q = "model.layers.0.self_attn.q_proj";
        vec![array(&key(q, 'A'), [2, inputs], 0.5), array(&key(q, 'B'), [outputs, 2], 3.0)]
    }

    fn written(arrays: &[NamedArray]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        tensors::write(&dir.path().join(WEIGHTS), arrays.iter().map(|a| (a.name.clone(), a))).unwrap();
        dir
    }

    fn refusal(arrays: &[NamedArray], config: &AdapterConfig) -> String {
        let (from, to) = (written(arrays), tempfile::tempdir().unwrap());
        let e = adopt(config, from.path(), &to.path().join("a"), &base().0).unwrap_err();
        assert_eq!(e.category, Category::User, "{e}");
        assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0, "nothing is left behind");
        e.message
    }

    #[test]
    fn the_scale_moves_into_b_and_what_is_missing_adds_nothing() {
        let (base, decoder) = base();
        let (from, to) = (written(&q_proj(&decoder)), tempfile::tempdir().unwrap());
        let dir = to.path().join("a");
        // 8 / 2 = 4 there, 32 / 2 = 16 here: B shrinks to a quarter.
        let (lora, size) = adopt(&config(2, 4.0, &["q_proj"]), from.path(), &dir, &base).unwrap();
        assert_eq!((lora.rank, lora.train_attn, lora.train_mlp, lora.train_unembed), (2, true, false, false));
        assert!(size > 0);
        let sites = Site::chosen(&decoder, true, false, false);
        let layout: Vec<_> = sites
            .iter()
            .flat_map(|site| {
                let (inputs, outputs) = site.sizes(&decoder);
                let name = |matrix: char| format!("{}.lora_{matrix}", site.module());
                [(name('A'), vec![2, inputs]), (name('B'), vec![outputs, 2])]
            })
            .collect();
        let loaded = checkpoint::load(&dir, &layout, false).unwrap();
        assert_eq!(loaded.base_model, "tiny");
        assert!(loaded.weights[0].data.iter().all(|x| *x == 0.5));
        assert!(loaded.weights[1].data.iter().all(|x| *x == 0.75));
        for pair in loaded.weights[2..].chunks(2) {
            assert!(pair[0].data.iter().any(|x| *x != 0.0), "{} can be trained", pair[0].name);
            assert!(pair[1].data.iter().all(|x| *x == 0.0));
        }
    }

    #[test]
    fn every_mismatch_is_named() {
        let (_, decoder) = base();
        let fine = q_proj(&decoder);
        let with = |more: NamedArray| [fine.clone(), vec![more]].concat();
        let q = config(2, 4.0, &["q_proj"]);
        let e = refusal(&fine, &config(4, 4.0, &["q_proj"]));
        assert!(e.contains("q_proj.lora_A.weight has shape [2, ") && e.contains("need [4, "), "{e}");
        let e = refusal(&fine, &config(65, 4.0, &["q_proj"]));
        assert!(e.contains("r is 65; the limit of this server is 64"), "{e}");
        let e = refusal(&with(array("base_model.model.lm_head.base_layer.weight", [1, 1], 0.0)), &q);
        assert!(e.contains("lm_head.base_layer.weight is no matrix of a LoRA adapter"), "{e}");
        let e = refusal(&with(array(&key("model.layers.9.self_attn.q_proj", 'A'), [2, 1], 0.0)), &q);
        assert!(e.contains("has no module model.layers.9.self_attn.q_proj"), "{e}");
        let e = refusal(&fine[..1], &q);
        assert!(e.contains("model.layers.0.self_attn.q_proj has a lora_A alone"), "{e}");
        let e = refusal(&fine, &config(2, 4.0, &["q_proj", "c_attn"]));
        assert!(e.contains("target_modules names c_attn"), "{e}");
        assert!(refusal(&[], &config(2, 4.0, &[])).contains("holds no matrix"));
        let mut infinite = fine.clone();
        infinite[1].data[3] = f32::INFINITY;
        assert!(refusal(&infinite, &q).contains("q_proj.lora_B.weight holds the value inf"));
        let e = refusal(&fine, &config(2, 1e39, &["q_proj"]));
        assert!(e.contains("q_proj.lora_B.weight holds the value 3, which is too large"), "{e}");
    }

    #[test]
    fn a_damaged_file_is_the_users_and_shows_no_path() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join(WEIGHTS), [0; 4]).unwrap();
        let e = adopt(&config(2, 4.0, &[]), from.path(), &to.path().join("a"), &base().0).unwrap_err();
        assert_eq!(e.category, Category::User);
        assert!(e.message.starts_with("adapter_model.safetensors is damaged"), "{e}");
    }

    #[test]
    fn only_an_adapters_two_files_are_taken() {
        let of = |names: &[(&str, u64)]| {
            expected_files(&names.iter().map(|(name, size)| (name.to_string(), *size)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(CONFIG, 5), (WEIGHTS, 7)]).unwrap()[WEIGHTS], 7);
        for bad in [
            &[(CONFIG, 5)][..],
            &[(CONFIG, 5), (WEIGHTS, 0)],
            &[(CONFIG, 5), ("adapter_model.bin", 7)],
            &[(CONFIG, 5), (WEIGHTS, 7), ("../x", 1)],
            &[(CONFIG, 5), (WEIGHTS, 7), (WEIGHTS, 7)],
        ] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
