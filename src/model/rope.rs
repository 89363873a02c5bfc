//! Cosines and sines of the rotary angles, in f32 as the reference computes them.

use burn::tensor::Device;

use crate::kernels::{RopeTable, upload};
use crate::model::config::DecoderConfig;

/// Tables for positions `0..positions`.
pub fn table(config: &DecoderConfig, positions: usize, device: &Device) -> RopeTable {
    let freq = config.inv_freq();
    let angles: Vec<f32> = (0..positions).flat_map(|p| freq.iter().map(move |f| p as f32 * f)).collect();
    let shape = [positions, freq.len()];
    // Through f64: a long position's angle is large, and f32 range reduction differs between libraries.
    let map = |f: fn(f64) -> f64| upload(angles.iter().map(|a| f(f64::from(*a)) as f32).collect(), shape, device);
    RopeTable { cos: map(f64::cos), sin: map(f64::sin) }
}
