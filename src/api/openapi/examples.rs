//! The ids that the document's examples share. A server gives out others; in everything else the examples work as they
//! stand.

use serde_json::{Value, json};

pub const MODEL: &str = "Qwen/Qwen3-8B";
pub const SESSION: &str = "0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d";
pub const RUN: &str = "0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d:train:0";
/// Made from `CHECKPOINT`.
pub const SECOND_RUN: &str = "0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d:train:1";
pub const SAMPLER: &str = "0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d:sample:0";
pub const CHECKPOINT: &str = "tinker://0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d:train:0/weights/step-1";
pub const SAMPLER_CHECKPOINT: &str = "tinker://0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d:train:0/sampler_weights/step-1";
pub const EXPORT: &str = "tinker://0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d:train:0/external_weights/export";
pub const REQUEST: &str = "7d9e8f70-1a2b-4c3d-8e5f-6a7b8c9d0e1f";
pub const TIME: &str = "2026-01-02T03:04:05.678901Z";

/// What a request on `RUN` is answered with.
pub fn promise() -> Value {
    json!({ "request_id": REQUEST, "model_id": RUN })
}
