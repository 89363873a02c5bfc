//! A model's weights: what opens has every parameter in full, both readers agree, and what is written reads the same.
#![no_main]

use std::cell::LazyCell;
use std::fs;

use libfuzzer_sys::fuzz_target;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;
use tinderbox::checkpoint::tensors::{self, Reader};
use tinderbox::model::config::{DecoderConfig, Rope, RopeScaling};
use tinderbox::model::import::Import;
use tinderbox::model::params::Param;
use tinderbox_fuzz::dir;

thread_local! {
    static DIR: LazyCell<TempDir> = const { LazyCell::new(dir) };
}

/// The model that seeds.py writes.
fn config() -> DecoderConfig {
    DecoderConfig {
        model_type: "qwen3".into(),
        vocab_size: 3,
        hidden_size: 2,
        num_layers: 1,
        num_heads: 1,
        num_kv_heads: 1,
        head_dim: 2,
        intermediate_size: 2,
        rms_norm_eps: 1e-6,
        rope: Rope { theta: 1e4, scaling: RopeScaling::None },
        tied_embeddings: true,
        qkv_bias: false,
        qk_norm: true,
        max_context_length: 8,
        eos_ids: vec![],
    }
}

fuzz_target!(|bytes: &[u8]| {
    DIR.with(|dir| {
        let path = dir.path().join("model.safetensors");
        fs::write(&path, bytes).expect("a file in memory");
        if let Ok(import) = Import::open(dir.path(), &config()) {
            imported(&import);
        }
        let Ok(mut reader) = Reader::open(&path) else { return };
        let whole = SafeTensors::deserialize(bytes).expect("what the reader takes is a safetensors file");
        let found: Vec<(String, Vec<usize>, Dtype)> =
            reader.arrays().into_iter().map(|(n, t)| (n.to_owned(), t.shape.clone(), t.dtype)).collect();
        assert_eq!(whole.len(), found.len());
        for (name, shape, dtype) in &found {
            let Ok(values) = reader.read(name) else { continue };
            assert_eq!(values.len(), shape.iter().product::<usize>());
            let same = whole.tensor(name).expect("both have it");
            if *dtype == Dtype::F32 {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                assert_eq!(bytes, same.data());
            }
        }
        if found.iter().all(|t| t.2 == Dtype::F32) && !found.is_empty() {
            rewritten(reader, &found, dir);
        }
    });
});

fn imported(import: &Import) {
    let c = config();
    for param in Param::all(&c) {
        assert_eq!(import.read(param).expect("open means readable").len(), param.num_elements(&c));
    }
}

fn rewritten(reader: Reader, found: &[(String, Vec<usize>, Dtype)], dir: &TempDir) {
    let layout: Vec<(String, Vec<usize>)> = found.iter().map(|(n, shape, _)| (n.clone(), shape.clone())).collect();
    let arrays = tensors::read_all(&mut [reader], &layout, str::to_owned).expect("its own layout fits");
    let copy = dir.path().join("copy");
    tensors::write(&copy, arrays.iter().map(|a| (a.name.clone(), a))).expect("what was read can be written");
    let mut again = Reader::open(&copy).expect("and opened");
    for array in &arrays {
        let values = again.read(&array.name).expect("and read");
        assert!(values.iter().map(|x| x.to_bits()).eq(array.data.iter().map(|x| x.to_bits())));
    }
}
