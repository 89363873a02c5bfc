//! The weights that samplers read: base models, snapshots of runs, in-flight weights, saved checkpoints.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::Device;

use crate::checkpoint;
use crate::command::SampleSource;
use crate::engine::models::{Base, Run, Trained};
use crate::engine::weights;
use crate::error::{Error, Result};
use crate::ids::{ModelId, SamplerId, SessionId};
use crate::model::weights::{Adapter, BaseWeights};

/// Numbers for weights that no pass may mix with others.
#[derive(Clone)]
pub struct Lanes(Arc<AtomicU64>);

impl Lanes {
    pub fn after(taken: u64) -> Self {
        Self(Arc::new(AtomicU64::new(taken)))
    }

    pub fn fresh(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Weights to sample from.
#[derive(Clone)]
pub struct Source {
    pub base: Arc<Base>,
    /// Sequences with the same lane decode together.
    pub lane: u64,
    pub trained: Option<Trained>,
    /// The `seq_id` of the save that made them; 0 for base models and checkpoints.
    pub version: u64,
    /// The run whose in-flight samplers read them: a later save puts others in their place.
    pub inflight_of: Option<ModelId>,
}

impl Source {
    pub fn weights(&self) -> &BaseWeights {
        match &self.trained {
            Some(Trained::Full(w)) => w,
            _ => &self.base.weights,
        }
    }

    pub fn adapter(&self) -> Option<&Adapter> {
        match &self.trained {
            Some(Trained::Lora(a)) => Some(a),
            _ => None,
        }
    }

    fn bytes(&self) -> u64 {
        self.trained.as_ref().map_or(0, |t| 4 * t.num_elements() as u64)
    }
}

/// A snapshot's weights: at hand, or in a file.
enum Place {
    Resident(Arc<Source>),
    Spilled(PathBuf),
}

struct Snapshot {
    place: Place,
    base: Arc<Base>,
    base_name: String,
    version: u64,
    used: u64,
}

/// Snapshots by sampler, and checkpoints by directory.
pub struct Sources {
    snapshots: HashMap<SamplerId, Snapshot>,
    /// In-flight samplers, and the weights that all those of one run read. One copy for each run, never sent to disk.
    followers: HashMap<SamplerId, ModelId>,
    inflight: HashMap<ModelId, Arc<Source>>,
    checkpoints: HashMap<PathBuf, (Arc<Source>, u64)>,
    /// Counts uses, to find what was used longest ago.
    uses: u64,
    budget_bytes: u64,
    /// Where snapshots go that memory has no room for.
    spill_dir: PathBuf,
    lanes: Lanes,
}

impl Sources {
    pub fn new(budget_bytes: u64, spill_dir: PathBuf, lanes: Lanes) -> Self {
        // What is left there belongs to samplers of a process that is gone.
        let _ = std::fs::remove_dir_all(&spill_dir);
        Self {
            snapshots: HashMap::new(),
            followers: HashMap::new(),
            inflight: HashMap::new(),
            checkpoints: HashMap::new(),
            uses: 0,
            budget_bytes,
            spill_dir,
            lanes,
        }
    }

    fn source(&self, base: Arc<Base>, trained: Option<Trained>, version: u64) -> Arc<Source> {
        let lane = if matches!(trained, Some(Trained::Full(_))) { self.lanes.fresh() } else { base.lane };
        Arc::new(Source { base, lane, trained, version, inflight_of: None })
    }

    /// Keeps a run's weights of save number `version` under a sampler's id.
    pub fn keep(&mut self, id: &SamplerId, run: &Run, version: u64) {
        self.uses += 1;
        let place = Place::Resident(self.source(run.base.clone(), Some(run.trained.clone()), version));
        let (base, base_name) = (run.base.clone(), run.base_name.clone());
        self.snapshots.insert(id.clone(), Snapshot { place, base, base_name, version, used: self.uses });
        self.make_room();
    }

    /// Makes a run's weights of save number `version` those of all its in-flight samplers, `id` among them.
    pub fn publish(&mut self, id: &SamplerId, model: &ModelId, run: &Run, version: u64) -> Arc<Source> {
        let source = self.source(run.base.clone(), Some(run.trained.clone()), version);
        let source = Arc::new(Source { inflight_of: Some(model.clone()), ..(*source).clone() });
        self.followers.insert(id.clone(), model.clone());
        self.inflight.insert(model.clone(), source.clone());
        source
    }

    pub fn drop_session(&mut self, session: &SessionId) {
        let prefix = format!("{session}:sample:");
        self.followers.retain(|id, _| !id.0.starts_with(&prefix));
        let followers = &self.followers;
        self.inflight.retain(|model, _| followers.values().any(|m| m == model));
        for (_, gone) in self.snapshots.extract_if(|id, _| id.0.starts_with(&prefix)) {
            if let Place::Spilled(dir) = gone.place {
                let _ = std::fs::remove_dir_all(dir);
            }
        }
    }

    pub fn get(&mut self, base: Arc<Base>, name: &str, source: &SampleSource, device: &Device) -> Result<Arc<Source>> {
        self.uses += 1;
        match source {
            SampleSource::Base => Ok(self.source(base, None, 0)),
            SampleSource::Snapshot(id) => self.snapshot(id, device),
            SampleSource::Checkpoint(dir) => self.checkpoint(base, dir, device).map_err(|e| e.context(name)),
        }
    }

    fn snapshot(&mut self, id: &SamplerId, device: &Device) -> Result<Arc<Source>> {
        let gone =
            || Error::user(format!("sampler {id}: its weights are gone; save them again or sample from a saved path"));
        if let Some(model) = self.followers.get(id) {
            return Ok(self.inflight[model].clone());
        }
        let snapshot = self.snapshots.get_mut(id).ok_or_else(gone)?;
        snapshot.used = self.uses;
        let version = snapshot.version;
        let dir = match &snapshot.place {
            Place::Resident(source) => return Ok(source.clone()),
            Place::Spilled(dir) => dir.clone(),
        };
        let base = snapshot.base.clone();
        let (trained, _) = weights::load(&dir, false, &base, device)?;
        let _ = std::fs::remove_dir_all(&dir);
        let source = self.source(base, Some(trained), version);
        self.snapshots.get_mut(id).expect("just seen").place = Place::Resident(source.clone());
        self.make_room();
        Ok(source)
    }

    fn checkpoint(&mut self, base: Arc<Base>, dir: &Path, device: &Device) -> Result<Arc<Source>> {
        if let Some((source, used)) = self.checkpoints.get_mut(dir) {
            *used = self.uses;
            return Ok(source.clone());
        }
        let (trained, _) = weights::load(dir, false, &base, device)?;
        let source = self.source(base, Some(trained), 0);
        self.checkpoints.insert(dir.to_path_buf(), (source.clone(), self.uses));
        self.make_room();
        Ok(source)
    }

    /// Sends what was used longest ago to disk until the budget holds; the newest always stays. What cannot be written
    /// stays in memory too.
    fn make_room(&mut self) {
        if let Err(e) = self.try_make_room() {
            tracing::warn!(error = %e, "a sampler's weights could not be moved to disk");
        }
    }

    fn try_make_room(&mut self) -> Result<()> {
        loop {
            let resident = self.snapshots.iter().filter_map(|(id, s)| match &s.place {
                Place::Resident(source) => Some((s.used, source.bytes(), id)),
                Place::Spilled(_) => None,
            });
            let total = resident.clone().map(|(_, bytes, _)| bytes).sum::<u64>()
                + self.checkpoints.values().map(|(s, _)| s.bytes()).sum::<u64>();
            if total <= self.budget_bytes {
                return Ok(());
            }
            let snapshot = resident.min_by_key(|(used, ..)| *used).map(|(used, _, id)| (used, id.clone()));
            let checkpoint = self.checkpoints.iter().map(|(dir, (_, used))| (*used, dir.clone())).min();
            let age = |used: Option<u64>| used.unwrap_or(u64::MAX);
            let (s, c) = (age(snapshot.as_ref().map(|s| s.0)), age(checkpoint.as_ref().map(|c| c.0)));
            match (snapshot, checkpoint) {
                _ if s.min(c) >= self.uses => return Ok(()),
                (Some((_, id)), _) if s < c => self.spill(&id)?,
                (_, Some((_, dir))) => {
                    self.checkpoints.remove(&dir);
                }
                _ => return Ok(()),
            }
        }
    }

    fn spill(&mut self, id: &SamplerId) -> Result<()> {
        let Some(snapshot) = self.snapshots.get_mut(id) else { return Ok(()) };
        let Place::Resident(source) = &snapshot.place else { return Ok(()) };
        let dir = self.spill_dir.join(uuid::Uuid::new_v4().to_string());
        let trained = source.trained.as_ref().expect("a snapshot has weights of its own");
        let image = weights::image(&snapshot.base_name, source.base.config(), trained, None);
        checkpoint::save(&dir, &image, &source.base.dir, &[])?;
        snapshot.place = Place::Spilled(dir);
        Ok(())
    }
}
