//! The engine: one thread that owns every tensor. It never awaits, and sees neither HTTP nor SQL.

mod barrier;
mod decode;
pub mod handle;
mod inbox;
mod job;
pub mod keep;
mod lasting;
pub mod load;
pub mod memory;
pub mod meter;
mod models;
mod prefill;
mod prompt;
mod prompts;
mod room;
mod run;
mod sample;
mod sequence;
pub mod snapshots;
mod sources;
mod state;
mod train;
mod turns;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use burn::tensor::DType;

use crate::config::device::{self as wanted, Dtype};
use crate::config::limits::Limits;
use crate::device;
use crate::error::{Error, Result};
use handle::{Handle, Keeper};
use keep::Keeping;
pub use models::ModelSource;

/// Where the state of runs lies.
pub fn runs_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("runs")
}

/// Where the weights of ephemeral samplers lie.
pub fn snapshots_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("snapshots")
}

/// Loads the models and starts the thread. `keeper` is told which requests need not be remembered any more;
/// `broken` is called when the engine has broken down for good.
///
/// # Errors
/// User errors: a directory that cannot be served (with what is missing), a device this build lacks.
pub fn spawn(
    sources: &[ModelSource],
    wanted: &wanted::Device,
    data_dir: &Path,
    limits: &Limits,
    keeper: Arc<dyn Keeper>,
    broken: impl Fn() + Send + 'static,
) -> Result<Handle> {
    let device = device::open(&wanted.choice)?;
    let dtype = match wanted.dtype {
        Dtype::F32 => DType::F32,
        Dtype::Bf16 => DType::BF16,
    };
    let budget = sources::Budget { memory: limits.snapshot_bytes, disk: limits.snapshot_disk_bytes };
    let models = models::Models::load(sources, device, dtype, budget, snapshots_dir(data_dir))?;
    let infos = models.infos(sources);
    let meter = models.meter.clone();
    let (tx, rx) = mpsc::channel();
    let handle = Handle::new(tx, infos).metered(meter);
    let keeping = Keeping::new(runs_dir(data_dir), keeper, limits.run_snapshot);
    let engine = run::Engine::new(models, rx, handle.board(), limits, keeping);
    tracing::info!(data = %data_dir.display(), dtype = ?wanted.dtype, "{}", engine.describe());
    // On a worker of a pool of its own: kernels split their work with the other workers without waking a sleeping
    // thread. The pool lives as long as what was spawned on it.
    let pool = rayon::ThreadPoolBuilder::new()
        .thread_name(|i| format!("engine-{i}"))
        .panic_handler(|_| tracing::error!("the engine is gone; restart the server"))
        .build();
    let pool = pool.map_err(|e| Error::server(format!("the engine's threads do not start: {e}")))?;
    pool.spawn(move || engine.run(&broken));
    Ok(handle)
}
