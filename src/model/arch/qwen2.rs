//! Qwen2 and Qwen2.5: q, k and v are always biased, o never; config.json does not say so.

use super::hf_config::HfConfig;
use crate::error::Result;
use crate::model::config::DecoderConfig;

pub fn decoder_config(hf: &HfConfig) -> Result<DecoderConfig> {
    hf.refuse_sliding_window()?;
    let head_dim = hf.head_dim.map_or_else(|| hf.even_split(), Ok)?;
    Ok(DecoderConfig { qkv_bias: true, ..hf.decoder(head_dim)? })
}
