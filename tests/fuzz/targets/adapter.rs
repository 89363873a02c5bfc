//! Uploaded adapters: what is adopted is a checkpoint that loads, of finite numbers, for the rank it says.
#![no_main]

use std::cell::LazyCell;
use std::fs;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tinderbox::checkpoint::{self, Kind};
use tinderbox::model::config::DecoderConfig;
use tinderbox::model::params::Site;
use tinderbox::upload::adapter::{AdapterConfig, Base, adopt};
use tinderbox_fuzz::dir;

const MAX_RANK: usize = 8;
/// The base model of seeds.py.
const BASE: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2,
    "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2,
    "vocab_size": 3, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 8,
    "tie_word_embeddings": false, "eos_token_id": 1}"#;

thread_local! {
    static DIRS: LazyCell<(TempDir, TempDir)> = const { LazyCell::new(|| {
        let base = dir();
        fs::write(base.path().join("config.json"), BASE).expect("a file in memory");
        (base, dir())
    }) };
}

// adapter_config.json, then NUL, then adapter_model.safetensors.
fuzz_target!(|input: &[u8]| {
    let Some(end) = input.iter().position(|b| *b == 0) else { return };
    DIRS.with(|dirs| {
        let (base, upload) = (dirs.0.path(), dirs.1.path());
        fs::write(upload.join("adapter_config.json"), &input[..end]).expect("a file in memory");
        fs::write(upload.join("adapter_model.safetensors"), &input[end + 1..]).expect("a file in memory");
        let Ok(config) = AdapterConfig::read(upload) else { return };
        assert!(config.rank >= 1 && config.scale.is_finite() && config.scale != 0.0);
        let (to, about) = (upload.join("made"), Base { name: "fuzzed", dir: base, max_rank: MAX_RANK });
        let Ok((lora, size)) = adopt(&config, upload, &to, &about) else {
            assert!(!to.exists(), "a refused upload left something behind");
            return;
        };
        assert!(lora.rank == config.rank && lora.rank <= MAX_RANK);
        assert_eq!(checkpoint::size(&to).expect("it is there"), size);
        loads(&to, base, lora.rank);
        fs::remove_dir_all(&to).expect("a directory in memory");
    });
});

fn loads(dir: &std::path::Path, base: &std::path::Path, rank: usize) {
    let manifest = checkpoint::manifest(dir).expect("a complete checkpoint");
    let Kind::Lora { config, .. } = manifest.kind else { panic!("not an adapter") };
    assert_eq!(config.rank, rank);
    let decoder = DecoderConfig::from_dir(base).expect("a good file");
    let mut layout = Vec::new();
    for site in Site::chosen(&decoder, config.train_attn, config.train_mlp, config.train_unembed) {
        let (inputs, outputs) = site.sizes(&decoder);
        layout.push((format!("{}.lora_A", site.module()), vec![rank, inputs]));
        layout.push((format!("{}.lora_B", site.module()), vec![outputs, rank]));
    }
    let loaded = checkpoint::load(dir, &layout, false).expect("it loads");
    assert!(loaded.weights.iter().all(|w| w.data.iter().all(|x| x.is_finite())), "a weight is not finite");
}
