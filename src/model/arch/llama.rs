//! Llama 3.x, SmolLM2 and their kin: no biases, no q/k norm, rope scaling of all kinds.

use super::hf_config::HfConfig;
use crate::error::Result;
use crate::model::config::DecoderConfig;

pub fn decoder_config(hf: &HfConfig) -> Result<DecoderConfig> {
    hf.refuse_attention_bias()?;
    hf.decoder(hf.head_dim.map_or_else(|| hf.even_split(), Ok)?)
}
