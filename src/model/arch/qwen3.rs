//! Qwen3, dense: norms on q and k, and a head size of its own.

use super::hf_config::HfConfig;
use crate::error::Result;
use crate::model::config::DecoderConfig;

/// The family's head size where config.json gives none.
const HEAD_DIM: usize = 128;

pub fn decoder_config(hf: &HfConfig) -> Result<DecoderConfig> {
    hf.refuse_attention_bias()?;
    hf.refuse_sliding_window()?;
    Ok(DecoderConfig { qk_norm: true, ..hf.decoder(hf.head_dim.unwrap_or(HEAD_DIM))? })
}
