//! For tests: model directories whose every value is known.

use std::path::Path;

use safetensors::{Dtype, tensor::TensorView};
use tempfile::TempDir;

use crate::model::config::{DecoderConfig, tests::tiny};
use crate::model::params::Param;

/// Name, type, shape, and bytes of the file.
pub type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// Every parameter of `c`, in f32: parameter p's element i is p + i / 1000.
pub fn tensors(c: &DecoderConfig) -> Vec<Tensor> {
    let value = |p: usize, i: usize| (p as f32 + i as f32 / 1000.0).to_le_bytes();
    let tensor = |(p, param): (usize, Param)| {
        let bytes = (0..param.num_elements(c)).flat_map(|i| value(p, i)).collect();
        (param.hf_name(), Dtype::F32, param.file_shape(c), bytes)
    };
    Param::all(c).into_iter().enumerate().map(tensor).collect()
}

/// A directory with these tensors in one file.
pub fn model(tensors: &[Tensor]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("model.safetensors"), tensors);
    dir
}

/// The tiny model in two files and their index.
pub fn sharded() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let all = tensors(&tiny());
    let (a, b) = all.split_at(9);
    write(&dir.path().join("a.safetensors"), a);
    write(&dir.path().join("b.safetensors"), b);
    let map: serde_json::Map<_, _> = all
        .iter()
        .enumerate()
        .map(|(i, t)| (t.0.clone(), if i < 9 { "a.safetensors".into() } else { "b.safetensors".into() }))
        .collect();
    std::fs::write(dir.path().join("model.safetensors.index.json"), serde_json::json!({"weight_map": map}).to_string())
        .unwrap();
    dir
}

fn write(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|(n, d, s, b)| (n, TensorView::new(*d, s.clone(), b).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}
