//! Writes the demo's model: a Qwen3 of under a million parameters with random weights and a byte vocabulary.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::Context;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

const HIDDEN: usize = 128;
const LAYERS: usize = 4;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const MLP: usize = 384;
const CONTEXT: usize = 512;
/// Standard deviation of every matrix.
const INIT_STD: f32 = 0.02;
/// Behind the 256 bytes in the vocabulary.
const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const VOCAB: usize = 256 + SPECIALS.len();
const END_OF_TEXT: usize = 256;
const IM_END: usize = 258;

const CHAT_TEMPLATE: &str = "{%- for m in messages -%}\
    {{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}\
    {%- endfor -%}\
    {%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// A complete Hugging Face directory; the same seed gives the same bytes.
pub fn write(dir: &Path, seed: u64) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let files = [
        ("config.json", config()),
        ("generation_config.json", json!({"eos_token_id": [IM_END, END_OF_TEXT], "pad_token_id": END_OF_TEXT})),
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", tokenizer_config()),
    ];
    for (name, content) in files {
        let path = dir.join(name);
        let text = serde_json::to_string_pretty(&content)? + "\n";
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    write_weights(&dir.join("model.safetensors"), seed)
}

fn config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "initializer_range": INIT_STD,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "attention_bias": false,
        "attention_dropout": 0.0,
        "use_sliding_window": false,
        "use_cache": true,
        "torch_dtype": "float32",
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
    })
}

/// Byte-level BPE without a single merge: the id of a byte is its value.
fn tokenizer() -> Value {
    let vocab: BTreeMap<String, usize> = (0..=255u8).map(|b| (byte_symbol(b).to_string(), b.into())).collect();
    let added: Vec<Value> = SPECIALS
        .iter()
        .enumerate()
        .map(|(i, s)| {
            json!({"id": 256 + i, "content": s, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []},
    })
}

fn tokenizer_config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": false,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": null,
        "unk_token": null,
        "chat_template": CHAT_TEMPLATE,
    })
}

/// How byte-level tokenizers spell a byte: printable ones as themselves, the others from U+0100 on, in order.
fn byte_symbol(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte.into();
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + rank).expect("U+0100 to U+0143 are letters")
}

fn write_weights(path: &Path, seed: u64) -> anyhow::Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let values = if shape.len() == 1 { vec![1.0; count] } else { normal(&mut rng, count) };
            (name, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), path).with_context(|| format!("writing {}", path.display()))
}

/// Every tensor's name and shape (out, in); the vectors are norms.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN])];
    for layer in 0..LAYERS {
        let in_layer = [
            ("input_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.k_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.v_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD_DIM]),
            ("self_attn.q_norm", vec![HEAD_DIM]),
            ("self_attn.k_norm", vec![HEAD_DIM]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("mlp.gate_proj", vec![MLP, HIDDEN]),
            ("mlp.up_proj", vec![MLP, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, MLP]),
        ];
        all.extend(in_layer.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    all.push(("model.norm.weight".to_owned(), vec![HIDDEN]));
    all
}

/// Normal numbers by the Box–Muller transform.
fn normal(rng: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    let draw = |_| {
        // 1 − u lies in (0, 1], so the logarithm is finite.
        let (u, v): (f32, f32) = (rng.random(), rng.random());
        INIT_STD * (-2.0 * (1.0 - u).ln()).sqrt() * (std::f32::consts::TAU * v).cos()
    };
    (0..count).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_model() {
        let [a, b, c] = [7, 7, 8].map(|seed| {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), seed).unwrap();
            fs::read(dir.path().join("model.safetensors")).unwrap()
        });
        assert_eq!(a, b);
        assert_ne!(a, c);
        let tensors = safetensors::SafeTensors::deserialize(&a).unwrap();
        let parameters: usize = tensors.iter().map(|(_, t)| t.shape().iter().product::<usize>()).sum();
        assert!((700_000..1_000_000).contains(&parameters), "{parameters}");
    }

    #[test]
    fn a_byte_is_its_own_token() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0).unwrap();
        let text = super::super::addition::Text::open(dir.path()).unwrap();
        assert_eq!(text.encode("3+4=7\n").unwrap(), [51, 43, 52, 61, 55, 10]);
        assert_eq!(text.encode("é\0<|im_end|>").unwrap(), [0xc3, 0xa9, 0, 258]);
        assert_eq!(text.decode(&[51, 10, 0xc3, 0xa9]).unwrap(), "3\né");
    }

    #[test]
    fn symbols_are_distinct() {
        let symbols: std::collections::HashSet<char> = (0..=255).map(byte_symbol).collect();
        assert_eq!(symbols.len(), 256);
        assert_eq!((byte_symbol(b'A'), byte_symbol(b' '), byte_symbol(b'\n')), ('A', 'Ġ', 'Ċ'));
    }

    #[test]
    fn weights_have_the_wanted_spread() {
        let values = normal(&mut ChaCha8Rng::seed_from_u64(1), 20_000);
        let mean = values.iter().sum::<f32>() / 20_000.0;
        let std = (values.iter().map(|v| v * v).sum::<f32>() / 20_000.0).sqrt();
        assert!(mean.abs() < 1e-3 && (std - INIT_STD).abs() < 1e-3, "{mean} {std}");
    }
}
