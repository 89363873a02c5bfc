//! Between trained matrices on the device and checkpoints on disk.

use std::path::Path;

use burn::tensor::Device;

use crate::checkpoint::tensors::NamedArray;
use crate::checkpoint::{self, Checkpoint, Kind, Optimizer};
use crate::command::Save;
use crate::engine::models::{Base, Moments, Run, Trained};
use crate::error::{Error, Result};
use crate::kernels::{Mat, download, upload};
use crate::model::config::DecoderConfig;
use crate::model::params::{Param, Site};
use crate::model::weights::{Adapter, BaseWeights, LORA_ALPHA};

/// Names and shapes of a checkpoint's arrays, in the order of the trained matrices.
fn layout(kind: Kind, config: &DecoderConfig) -> Vec<(String, Vec<usize>)> {
    match kind {
        Kind::Full => Param::all(config).into_iter().map(|p| (p.hf_name(), p.file_shape(config))).collect(),
        Kind::Lora { config: lora, .. } => {
            let both = |site: Site| {
                let (inputs, outputs) = site.sizes(config);
                let module = site.module();
                [
                    (format!("{module}.lora_A"), vec![lora.rank, inputs]),
                    (format!("{module}.lora_B"), vec![outputs, lora.rank]),
                ]
            };
            let sites = Site::chosen(config, lora.train_attn, lora.train_mlp, lora.train_unembed);
            sites.into_iter().flat_map(both).collect()
        }
    }
}

fn arrays(layout: &[(String, Vec<usize>)], mats: &[Mat]) -> Vec<NamedArray> {
    let one = |((name, shape), mat): (&(String, Vec<usize>), &Mat)| NamedArray {
        name: name.clone(),
        shape: shape.clone(),
        data: download(mat.clone()),
    };
    layout.iter().zip(mats).map(one).collect()
}

/// A copy in host memory that can be written while training goes on.
pub fn image(base_name: &str, config: &DecoderConfig, trained: &Trained, moments: Option<&Moments>) -> Checkpoint {
    let kind = match trained {
        Trained::Lora(a) => Kind::Lora { config: a.config, alpha: LORA_ALPHA },
        Trained::Full(_) => Kind::Full,
    };
    let layout = layout(kind, config);
    let optimizer = moments.map(|moments| {
        let state = |mats: &[Mat]| {
            if mats.is_empty() { zeros(&layout) } else { arrays(&layout, mats) }
        };
        Optimizer { step: moments.step, m: state(&moments.m), v: state(&moments.v) }
    });
    Checkpoint { base_model: base_name.into(), kind, weights: arrays(&layout, trained.mats()), optimizer }
}

fn zeros(layout: &[(String, Vec<usize>)]) -> Vec<NamedArray> {
    let zero = |(name, shape): &(String, Vec<usize>)| NamedArray {
        name: name.clone(),
        shape: shape.clone(),
        data: vec![0.0; shape.iter().product()],
    };
    layout.iter().map(zero).collect()
}

/// Starts writing what `save` asks for; gives the finishing half, which may run on another thread.
pub fn begin_save(run: &Run, save: &Save) -> impl FnOnce() -> Result<u64> + Send + use<> {
    let (dir, recipients, moments) = match save {
        Save::Training { dir } => (dir.clone(), Vec::new(), Some(&run.moments)),
        Save::Sampler { dir } => (dir.clone(), Vec::new(), None),
        Save::External { dir, recipients } => (dir.clone(), recipients.clone(), None),
        Save::Snapshot { .. } | Save::Inflight { .. } => unreachable!("these stay in the engine"),
    };
    let image = image(&run.base_name, run.base.config(), &run.trained, moments);
    let base_dir = run.base.dir.clone();
    move || {
        // Every save has a directory of its own: this one was written before the process was killed.
        if dir.exists() {
            return checkpoint::size(&dir);
        }
        checkpoint::save(&dir, &image, &base_dir, &recipients)
    }
}

/// Reads a checkpoint's weights, and its moments when `optimizer`.
pub fn load(dir: &Path, optimizer: bool, base: &Base, device: &Device) -> Result<(Trained, Moments)> {
    let config = base.config();
    let kind = checkpoint::manifest(dir)?.kind;
    let read = checkpoint::load(dir, &layout(kind, config), optimizer)?;
    let to_device = |arrays: Vec<NamedArray>| -> Vec<Mat> {
        let one = |a: NamedArray| {
            let cols = *a.shape.last().expect("an array has a shape");
            let rows = a.data.len() / cols.max(1);
            upload(a.data, [rows, cols], device)
        };
        arrays.into_iter().map(one).collect()
    };
    let mats = to_device(read.weights);
    let trained = match kind {
        Kind::Lora { config: lora, alpha } if alpha == LORA_ALPHA => Trained::Lora(Adapter::new(lora, config, mats)),
        Kind::Lora { alpha, .. } => {
            return Err(Error::user(format!("the checkpoint's lora_alpha is {alpha}; only {LORA_ALPHA} is supported")));
        }
        Kind::Full => Trained::Full(BaseWeights::new(base.weights.config.clone(), mats)),
    };
    let moments = read.optimizer.map_or_else(Moments::default, |o| Moments {
        step: o.step,
        m: to_device(o.m),
        v: to_device(o.v),
    });
    Ok((trained, moments))
}
