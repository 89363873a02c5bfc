//! `DecoderConfig`: all that the supported families vary in, read from a model directory.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::arch;

#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// `model_type` of config.json: llama, qwen2, qwen3.
    pub model_type: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    /// Divides `num_heads`.
    pub num_kv_heads: usize,
    /// Even; not always `hidden_size / num_heads`.
    pub head_dim: usize,
    pub intermediate_size: usize,
    pub rms_norm_eps: f64,
    pub rope: Rope,
    /// The output head is the embedding matrix.
    pub tied_embeddings: bool,
    /// q, k and v add a bias.
    pub qkv_bias: bool,
    /// RMS norm over each head of q and k before the rotation.
    pub qk_norm: bool,
    pub max_context_length: usize,
    /// Ids that end a generation, from config.json and generation_config.json, ascending.
    pub eos_ids: Vec<u32>,
}

/// Rotary position embedding over the whole head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub scaling: RopeScaling,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position_embeddings: f64 },
}

impl DecoderConfig {
    /// Reads `config.json` and, where present, `generation_config.json`. What the decoder cannot do is refused here.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let config = read_json(&path)?;
        let mut c = arch::decoder_config(&config).map_err(|e| e.context(path.display()))?;
        c.eos_ids = eos_ids(&config).map_err(|e| e.context(path.display()))?;
        let path = dir.join("generation_config.json");
        if path.exists() {
            c.eos_ids.extend(eos_ids(&read_json(&path)?).map_err(|e| e.context(path.display()))?);
        }
        c.eos_ids.sort_unstable();
        c.eos_ids.dedup();
        Ok(c)
    }

    /// Width of q: N × H.
    pub fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of k and of v.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Rotation per position of each pair of a head's halves, (H / 2,), in the same f32 steps as Transformers.
    pub fn inv_freq(&self) -> Vec<f32> {
        (0..self.head_dim).step_by(2).map(|i| self.rope.scaling.apply(self.rope.plain(i, self.head_dim))).collect()
    }
}

impl Rope {
    /// The power in f64, since it then rounds to the f32 nearest to the true value whatever the platform's `powf`.
    fn plain(&self, i: usize, head_dim: usize) -> f32 {
        let exponent = i as f32 / head_dim as f32;
        1.0 / f64::from(self.theta as f32).powf(f64::from(exponent)) as f32
    }
}

impl RopeScaling {
    fn apply(self, freq: f32) -> f32 {
        match self {
            Self::None => freq,
            Self::Linear { factor } => freq / factor as f32,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings: old } => {
                let (low, high) = ((old / low_freq_factor) as f32, (old / high_freq_factor) as f32);
                // A quotient of a number and a tensor is the number times the reciprocal, rounded twice.
                let wavelength = (1.0 / freq) * std::f64::consts::TAU as f32;
                if wavelength < high {
                    return freq;
                }
                if wavelength > low {
                    return freq / factor as f32;
                }
                let turns = (1.0 / wavelength) * old as f32;
                let smooth = (turns - low_freq_factor as f32) / (high_freq_factor - low_freq_factor) as f32;
                (1.0 - smooth) * freq / factor as f32 + smooth * freq
            }
        }
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(|e| Error::user(format!("cannot read {}: {e}", path.display())))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::user(format!("{} is not valid JSON: {e}", path.display())))
}

/// `eos_token_id`: absent, null, an id or a list of ids.
fn eos_ids(json: &Value) -> Result<Vec<u32>> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match json.get("eos_token_id") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(id).collect(),
        Some(v) => id(v).map(|id| vec![id]),
    };
    ids.ok_or_else(|| {
        Error::user(format!("eos_token_id: expected an id or a list of ids, got {}", json["eos_token_id"]))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tiny() -> DecoderConfig {
        DecoderConfig {
            model_type: "llama".into(),
            vocab_size: 16,
            hidden_size: 8,
            num_layers: 2,
            num_heads: 2,
            num_kv_heads: 1,
            head_dim: 12,
            intermediate_size: 20,
            rms_norm_eps: 1e-5,
            rope: Rope { theta: 10000.0, scaling: RopeScaling::None },
            tied_embeddings: false,
            qkv_bias: false,
            qk_norm: false,
            max_context_length: 64,
            eos_ids: vec![1],
        }
    }

    fn bits(head_dim: usize, theta: f64, scaling: RopeScaling) -> Vec<u32> {
        let c = DecoderConfig { head_dim, rope: Rope { theta, scaling }, ..tiny() };
        c.inv_freq().into_iter().map(f32::to_bits).collect()
    }

    // The literals of the next three tests are the bits of transformers 4.57's ROPE_INIT_FUNCTIONS.

    #[test]
    fn plain_inverse_frequencies() {
        let want = [0x3f800000, 0x3e164d7a, 0x3cb07dc4, 0x3b4f3e38, 0x39f35a55, 0x388ee099];
        assert_eq!(bits(12, 1e5, RopeScaling::None), want);
        let want = [0x3f800000, 0x3ea1e89b, 0x3dcccccd, 0x3d0186e3, 0x3c23d70a, 0x3b4f3e38, 0x3a83126f, 0x39a5cb60];
        assert_eq!(bits(16, 1e4, RopeScaling::None), want);
    }

    #[test]
    fn linearly_scaled_inverse_frequencies() {
        let want = [0x3eaaaaab, 0x3dd7e0cf, 0x3d088889, 0x3c2cb3d9, 0x3b5a740d, 0x3a8a297b, 0x39aec33f, 0x38dd0f2b];
        assert_eq!(bits(16, 1e4, RopeScaling::Linear { factor: 3.0 }), want);
    }

    /// Llama 3.2 1B: all three ranges of wavelengths occur.
    #[test]
    fn llama3_scaled_inverse_frequencies() {
        let want = [
            0x3f800000, 0x3f29e1c6, 0x3ee177bc, 0x3e959ee3, 0x3e4693b0, 0x3e03c6a0, 0x3daee4ad, 0x3d681e67, 0x3d1a08c8,
            0x3ccc6f49, 0x3c87a9c3, 0x3c340d6d, 0x3beef74f, 0x3b9e9402, 0x3b527720, 0x3aa9279b, 0x39e13620, 0x38cb98f7,
            0x37a3418d, 0x3758ac81, 0x370fc8f8, 0x36bed4f4, 0x367d45c3, 0x3628126b, 0x35df10c4, 0x359406cb, 0x35447610,
            0x35025f34, 0x34ad07a7, 0x3465a54d, 0x341864a7, 0x33ca41b0,
        ];
        let scaling = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        assert_eq!(bits(64, 5e5, scaling), want);
    }

    const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 20,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": 1}"#;

    #[test]
    fn a_directory_gives_the_config_and_the_union_of_its_eos_ids() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), CONFIG).unwrap();
        assert_eq!(DecoderConfig::from_dir(dir.path()).unwrap(), tiny());
        std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [7, 1, 3]}"#).unwrap();
        assert_eq!(DecoderConfig::from_dir(dir.path()).unwrap().eos_ids, [1, 3, 7]);
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let message = || DecoderConfig::from_dir(dir.path()).unwrap_err().message;
        assert!(message().contains("cannot read") && message().contains("config.json"), "{}", message());
        std::fs::write(dir.path().join("config.json"), "{").unwrap();
        assert!(message().contains("not valid JSON"), "{}", message());
        std::fs::write(
            dir.path().join("config.json"),
            CONFIG.replace("\"eos_token_id\": 1", "\"eos_token_id\": \"x\""),
        )
        .unwrap();
        assert!(message().contains("eos_token_id") && message().contains("config.json"), "{}", message());
    }
}
