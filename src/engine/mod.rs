//! The engine: one thread that owns every tensor. It never awaits, and sees neither HTTP nor SQL.

pub mod handle;
mod models;
mod prompt;
mod run;
mod sample;
mod train;
mod weights;

use std::path::Path;
use std::sync::mpsc;

use crate::config::device::DeviceChoice;
use crate::config::limits::Limits;
use crate::device;
use crate::error::Result;
use handle::Handle;
pub use models::ModelSource;
pub use run::NOW;

/// Loads the models and starts the thread.
///
/// # Errors
/// User errors: a directory that cannot be served (with what is missing), a device this build lacks.
pub fn spawn(sources: &[ModelSource], choice: &DeviceChoice, data_dir: &Path, limits: &Limits) -> Result<Handle> {
    let device = device::open(choice)?;
    let models = models::Models::load(sources, device, limits.snapshot_bytes, data_dir.join("snapshots"))?;
    let infos = models.infos(sources);
    let (tx, rx) = mpsc::channel();
    let engine = run::Engine::new(models, rx, limits);
    std::thread::Builder::new().name("engine".into()).spawn(move || engine.run())?;
    Ok(Handle::new(tx, infos))
}
