//! The decoder: one config-driven forward and backward pass for every supported family.

pub mod arch;
pub mod batch;
pub mod config;
pub mod decoder;
pub mod grads;
pub mod head;
pub mod import;
pub mod kv_cache;
pub mod layer;
pub mod params;
pub mod rope;
#[cfg(test)]
mod testing;
pub mod weights;
