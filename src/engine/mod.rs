//! The engine: one thread that owns every tensor. It never awaits, and sees neither HTTP nor SQL.

pub mod handle;
mod memory;
mod models;
mod prefill;
mod prompt;
mod run;
mod sample;
mod sources;
mod train;
mod weights;

use std::path::Path;
use std::sync::mpsc;

use crate::config::device::{self as wanted, Dtype};
use crate::config::limits::Limits;
use crate::device;
use crate::error::{Error, Result};
use handle::Handle;
pub use models::ModelSource;

/// Loads the models and starts the thread.
///
/// # Errors
/// User errors: a directory that cannot be served (with what is missing), a device this build lacks.
pub fn spawn(sources: &[ModelSource], wanted: &wanted::Device, data_dir: &Path, limits: &Limits) -> Result<Handle> {
    let device = device::open(&wanted.choice)?;
    if wanted.dtype == Dtype::Bf16 {
        return Err(Error::user("--dtype bf16: base weights are kept in f32 so far, whatever their files hold"));
    }
    let models = models::Models::load(sources, device, limits.snapshot_bytes, data_dir.join("snapshots"))?;
    let infos = models.infos(sources);
    let (tx, rx) = mpsc::channel();
    let engine = run::Engine::new(models, rx, limits);
    // On a worker of the pool: kernels then split their work with the other workers without waking a sleeping thread.
    rayon::spawn(move || engine.run());
    Ok(Handle::new(tx, infos))
}
