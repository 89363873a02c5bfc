//! When a run's state is written to disk, and by whom: often enough that little has to be done again after a crash, seldom
//! enough that it costs little.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::engine::handle::Keeper;
use crate::engine::models::Models;
use crate::engine::snapshots::{Files, Origin};
use crate::engine::state::{self, Image, Staged};
use crate::error::{Error, Result};
use crate::ids::ModelId;

/// Work between two states of a run, in multiples of what the last one cost: they take at most 1/20 of the time.
const WORK_PER_COST: u32 = 20;
/// Snapshots that are copied at a time.
const SNAPSHOTS: usize = 8;
/// A run that nobody asks anything is written after so long.
const IDLE: Duration = Duration::from_secs(1);
/// How long a finished file waits for the answers it makes superfluous to be kept.
const PATIENCE: Duration = Duration::from_secs(120);

/// Called when the state is in its place, or could not be put there.
pub type Then = Box<dyn FnOnce(&Result<()>) + Send>;

pub struct Keeping {
    dir: PathBuf,
    keeper: Arc<dyn Keeper>,
    /// Work between two states at least.
    interval: Duration,
    runs: HashMap<ModelId, Unkept>,
    /// Writes that are under way.
    writing: HashMap<ModelId, usize>,
    done: (Sender<Written>, Receiver<Written>),
    saved: Vec<Origin>,
}

/// What of a run is not on disk.
#[derive(Default)]
struct Unkept {
    /// Time spent on it since its last state was taken.
    work: Duration,
    /// Time spent on its last state.
    cost: Duration,
    last: Option<Instant>,
}

struct Written {
    model: ModelId,
    /// Snapshots that were written beside the state.
    snapshots: Vec<Origin>,
    took: Duration,
    result: Result<()>,
}

impl Keeping {
    pub fn new(dir: PathBuf, keeper: Arc<dyn Keeper>, interval: Duration) -> Self {
        Self {
            dir,
            keeper,
            interval,
            runs: HashMap::new(),
            writing: HashMap::new(),
            done: channel(),
            saved: Vec::new(),
        }
    }

    /// Where the runs' directories lie.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the state of a run before number `next` lies.
    pub fn path(&self, model: &ModelId, next: u64) -> PathBuf {
        state::path(&self.dir.join(model.dir_name()), next)
    }

    pub fn keeper(&self) -> &dyn Keeper {
        &*self.keeper
    }

    /// Notes that the run was changed by so much work.
    pub fn worked(&mut self, model: &ModelId, time: Duration) {
        let run = self.runs.entry(model.clone()).or_default();
        run.work += time.max(Duration::from_nanos(1));
        run.last = Some(Instant::now());
    }

    /// Nothing of the run is to be kept.
    pub fn forget(&mut self, model: &ModelId) {
        self.runs.remove(model);
    }

    /// The run is gone for good, and its files with it; snapshots of it that samplers still read are written before.
    pub fn end(&mut self, model: &ModelId, models: &Models) {
        self.runs.remove(model);
        let (unsaved, files) = models.unsaved_snapshots(model);
        for (origin, source) in unsaved {
            if let Err(e) = files.write(&origin, &Files::image(&origin, &source), &source.base.dir) {
                tracing::warn!(run = %model, error = %e, "weights of a sampler are in memory alone");
            }
        }
        self.keeper.ended(model);
        let dir = self.dir.join(model.dir_name());
        if let Err(e) = std::fs::remove_dir_all(&dir)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %dir.display(), error = %e, "a run's files stay until the next start");
        }
    }

    /// The run whose state is due. `idle`: the engine has nothing else to do.
    pub fn due(&mut self, idle: bool) -> Option<ModelId> {
        self.collect();
        let writing = &self.writing;
        // One at a time: each holds a copy of a run in memory.
        if !writing.is_empty() {
            return None;
        }
        let due = |run: &Unkept| {
            let enough = run.work >= self.interval.max(run.cost * WORK_PER_COST);
            let silent = idle && run.last.is_some_and(|at| at.elapsed() >= IDLE.min(self.interval));
            run.work > Duration::ZERO && (enough || silent)
        };
        self.runs.iter().filter(|(_, run)| due(run)).max_by_key(|(_, run)| run.work).map(|(m, _)| m.clone())
    }

    /// Whether anything would become due by waiting.
    pub fn waits(&self) -> bool {
        !self.writing.is_empty() || self.runs.values().any(|run| run.work > Duration::ZERO)
    }

    /// Every run that has changed since its last state.
    pub fn unkept(&self) -> Vec<ModelId> {
        self.runs.iter().filter(|(_, run)| run.work > Duration::ZERO).map(|(m, _)| m.clone()).collect()
    }

    /// Copies the run's state before number `next` now, and writes it on a thread of its own. `settled`: the number below
    /// which all must be answered before the file may take their place.
    pub fn begin(&mut self, model: &ModelId, models: &Models, (next, settled): (u64, u64), then: Option<Then>) {
        let start = Instant::now();
        let Some(run) = models.run(model) else { return };
        let (mut unsaved, files) = models.unsaved_snapshots(model);
        // Many are written first, a few at a time; unless somebody waits for the state.
        let all = then.is_some() || unsaved.len() <= SNAPSHOTS;
        let image = all.then(|| Image::of(run, next));
        if !all {
            unsaved.truncate(SNAPSHOTS);
        }
        let base_dir = run.base.dir.clone();
        let snapshots = unsaved.into_iter().map(|(origin, source)| {
            let image = Files::image(&origin, &source);
            (origin, image)
        });
        let snapshots: Vec<_> = snapshots.collect();
        let unkept = self.runs.entry(model.clone()).or_default();
        if all {
            unkept.work = Duration::ZERO;
        }
        *self.writing.entry(model.clone()).or_default() += 1;
        tracing::debug!(target: "tinderbox::durability", moment = "snapshot", run = %model, next, "state taken");
        let (dir, keeper, model) = (self.dir.join(model.dir_name()), self.keeper.clone(), model.clone());
        // Here, so that nobody makes it again after the run's end has removed it.
        if let Err(e) = std::fs::create_dir_all(&dir) {
            tracing::warn!(dir = %dir.display(), error = %e, "a run's directory cannot be made");
        }
        let (done, copied) = (self.done.0.clone(), start.elapsed());
        std::thread::spawn(move || {
            let start = Instant::now();
            // Before the requests that made them are forgotten.
            let saved = snapshots.iter().try_for_each(|(origin, image)| files.write(origin, image, &base_dir));
            let staged = saved.and_then(|()| image.map(|image| image.staged(&dir)).transpose());
            let wrote = start.elapsed();
            let result = staged.and_then(|staged| match staged {
                Some(staged) => commit(staged, &*keeper, &model, (next, settled)),
                None => Ok(()),
            });
            if let Some(then) = then {
                then(&result);
            }
            let snapshots = snapshots.into_iter().map(|(origin, _)| origin).collect();
            let _ = done.send(Written { model, snapshots, took: copied + wrote, result });
        });
    }

    /// Waits until everything that was begun is written, up to `limit`.
    pub fn finish(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        while !self.writing.is_empty() {
            match self.done.1.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(written) => self.note(written),
                Err(_) => return,
            }
        }
    }

    fn collect(&mut self) {
        while let Ok(written) = self.done.1.try_recv() {
            self.note(written);
        }
    }

    /// Snapshots that were written since the last call.
    pub fn take_saved(&mut self) -> Vec<Origin> {
        std::mem::take(&mut self.saved)
    }

    fn note(&mut self, Written { model, snapshots, took, result }: Written) {
        self.saved.extend(snapshots);
        if let Some(n) = self.writing.get_mut(&model) {
            *n -= 1;
            if *n == 0 {
                self.writing.remove(&model);
            }
        }
        // A run that has ended is not remembered again.
        let Some(run) = self.runs.get_mut(&model) else { return };
        run.cost = took;
        if let Err(e) = result {
            tracing::warn!(run = %model, error = %e, "the run's state was not written; its requests stay in the journal");
            // What it holds is still to be written; not at once, since the reason may last.
            run.work += Duration::from_nanos(1);
            run.cost = run.cost.max(Duration::from_secs(1));
            run.last = Some(Instant::now());
        }
    }
}

/// Puts a written state in its place, when all that it makes superfluous has been answered.
fn commit(staged: Staged, keeper: &dyn Keeper, model: &ModelId, (next, settled): (u64, u64)) -> Result<()> {
    let start = Instant::now();
    while !keeper.settled(model, settled) {
        if start.elapsed() > PATIENCE {
            return Err(Error::server("requests before it are still being answered"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    keeper.sync()?;
    staged.commit()?;
    keeper.kept(model, next);
    tracing::debug!(target: "tinderbox::durability", moment = "snapshot", run = %model, next, "state kept");
    Ok(())
}

/// The newest whole state of a run below `dir`, with the number that comes next; and what is wrong with newer ones.
pub fn newest(dir: &Path, model: &ModelId) -> (Option<(u64, PathBuf)>, Vec<Error>) {
    let mut damaged = Vec::new();
    for (next, path) in state::files(&dir.join(model.dir_name())) {
        match state::check(&path) {
            Ok(()) => return (Some((next, path)), damaged),
            Err(e) => damaged.push(e),
        }
    }
    (None, damaged)
}

/// The runs that have a directory below `dir`.
pub fn found(dir: &Path) -> Vec<ModelId> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| ModelId::from_dir_name(e.file_name().to_str()?)).collect()
}
