//! The weights that samplers read: base models, snapshots of runs, in-flight weights, saved checkpoints.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::Device;

use crate::command::SampleSource;
use crate::engine::models::{Base, Run, Trained};
use crate::engine::snapshots::{Files, Origin};
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

/// Weights kept for a sampler, or for all in-flight samplers of a run.
struct Snapshot {
    /// `None` = read from its files when asked for.
    resident: Option<Arc<Source>>,
    origin: Origin,
    base: Arc<Base>,
    bytes: u64,
    used: u64,
}

/// Snapshots by sampler, and checkpoints by directory.
pub struct Sources {
    snapshots: HashMap<SamplerId, Snapshot>,
    /// In-flight samplers, and the weights that all those of one run read.
    followers: HashMap<SamplerId, ModelId>,
    inflight: HashMap<ModelId, Snapshot>,
    checkpoints: HashMap<PathBuf, (Arc<Source>, u64)>,
    /// Counts uses, to find what was used longest ago.
    uses: u64,
    budget: Budget,
    /// Where snapshots go that memory has no room for, and all of them before the requests that made them are forgotten.
    files: Files,
    lanes: Lanes,
}

/// Bytes of weights, in memory and in files.
#[derive(Clone, Copy)]
pub struct Budget {
    pub memory: u64,
    pub disk: u64,
}

/// Which snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Of(SamplerId),
    Inflight(ModelId),
}

impl Sources {
    /// With those that an earlier process left in `files`, as far as their base model is served.
    pub fn new(budget: Budget, files: Files, lanes: Lanes, bases: &HashMap<String, Arc<Base>>) -> Self {
        let mut sources = Self {
            snapshots: HashMap::new(),
            followers: HashMap::new(),
            inflight: HashMap::new(),
            checkpoints: HashMap::new(),
            uses: 0,
            budget,
            files,
            lanes,
        };
        for (origin, bytes) in sources.files.found() {
            let Some(base) = bases.get(&origin.base) else {
                tracing::warn!(samplers = ?origin.samplers, base = origin.base, "its base model is not served");
                continue;
            };
            sources.restore(Snapshot { resident: None, base: base.clone(), bytes, used: 0, origin });
        }
        sources
    }

    fn restore(&mut self, snapshot: Snapshot) {
        let origin = &snapshot.origin;
        if !origin.inflight {
            if let Some(id) = origin.samplers.first() {
                self.snapshots.insert(id.clone(), snapshot);
            }
            return;
        }
        let older = self.inflight.get(&origin.run);
        if older.is_none_or(|o| o.origin.version < origin.version) {
            self.followers.extend(origin.samplers.iter().map(|id| (id.clone(), origin.run.clone())));
            self.inflight.insert(origin.run.clone(), snapshot);
        }
    }

    fn source(&self, base: Arc<Base>, trained: Option<Trained>, version: u64) -> Arc<Source> {
        let lane = if matches!(trained, Some(Trained::Full(_))) { self.lanes.fresh() } else { base.lane };
        Arc::new(Source { base, lane, trained, version, inflight_of: None })
    }

    /// Keeps a run's weights of save number `version` under a sampler's id.
    pub fn keep(&mut self, id: &SamplerId, model: &ModelId, run: &Run, version: u64) {
        self.uses += 1;
        let source = self.source(run.base.clone(), Some(run.trained.clone()), version);
        let origin = Origin::of(run, model, version, vec![id.clone()], false);
        let bytes = source.bytes();
        let snapshot = Snapshot { base: run.base.clone(), origin, bytes, used: self.uses, resident: Some(source) };
        self.snapshots.insert(id.clone(), snapshot);
        self.make_room();
    }

    /// Makes a run's weights of save number `version` those of all its in-flight samplers, `id` among them.
    pub fn publish(&mut self, id: &SamplerId, model: &ModelId, run: &Run, version: u64) -> Arc<Source> {
        self.uses += 1;
        let source = self.source(run.base.clone(), Some(run.trained.clone()), version);
        let source = Arc::new(Source { inflight_of: Some(model.clone()), ..(*source).clone() });
        self.followers.insert(id.clone(), model.clone());
        let followers = self.followers.iter().filter(|(_, m)| *m == model).map(|(id, _)| id.clone());
        let origin = Origin::of(run, model, version, followers.collect(), true);
        let (bytes, resident) = (source.bytes(), Some(source.clone()));
        let snapshot = Snapshot { base: run.base.clone(), origin, bytes, used: self.uses, resident };
        if let Some(old) = self.inflight.insert(model.clone(), snapshot) {
            self.files.remove(&old.origin);
        }
        self.make_room();
        source
    }

    pub fn drop_session(&mut self, session: &SessionId) {
        let prefix = format!("{session}:sample:");
        self.followers.retain(|id, _| !id.0.starts_with(&prefix));
        let Self { followers, inflight, snapshots, files, .. } = self;
        let unread = inflight.extract_if(|model, _| !followers.values().any(|m| m == model)).map(|(_, s)| s);
        unread.for_each(|s| files.remove(&s.origin));
        let gone = snapshots.extract_if(|id, _| id.0.starts_with(&prefix)).map(|(_, s)| s);
        gone.for_each(|s| files.remove(&s.origin));
    }

    /// The snapshots of a run that are in memory alone, to be written with [`Files::write`].
    pub fn unsaved(&self, model: &ModelId) -> Vec<(Origin, Arc<Source>)> {
        let all = self.snapshots.values().chain(self.inflight.values()).filter(|s| s.origin.run == *model);
        let unsaved = all.filter_map(|s| Some((s.origin.clone(), s.resident.clone()?)));
        unsaved.filter(|(origin, _)| !self.files.has(origin)).collect()
    }

    pub fn remove_unless_wanted(&self, origin: &Origin) {
        if !self.all().any(|(_, s)| s.origin == *origin) {
            self.files.remove(origin);
        }
    }

    pub fn files(&self) -> &Files {
        &self.files
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
        let which = match self.followers.get(id) {
            Some(model) => Which::Inflight(model.clone()),
            None => Which::Of(id.clone()),
        };
        let uses = self.uses;
        let Some(snapshot) = self.find(&which) else {
            let gone = "its weights are gone; save them again or sample from a saved path";
            return Err(Error::user(format!("sampler {id}: {gone}")));
        };
        snapshot.used = uses;
        if let Some(source) = &snapshot.resident {
            return Ok(source.clone());
        }
        let (origin, base) = (snapshot.origin.clone(), snapshot.base.clone());
        let (trained, _) = weights::load(&self.files.dir(&origin), false, &base, device)?;
        let source = self.source(base, Some(trained), origin.version);
        let inflight_of = origin.inflight.then(|| origin.run.clone());
        let source = Arc::new(Source { inflight_of, ..(*source).clone() });
        self.find(&which).expect("just seen").resident = Some(source.clone());
        self.make_room();
        Ok(source)
    }

    fn find(&mut self, which: &Which) -> Option<&mut Snapshot> {
        match which {
            Which::Of(id) => self.snapshots.get_mut(id),
            Which::Inflight(model) => self.inflight.get_mut(model),
        }
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

    fn all(&self) -> impl Iterator<Item = (Which, &Snapshot)> {
        let own = self.snapshots.iter().map(|(id, s)| (Which::Of(id.clone()), s));
        own.chain(self.inflight.iter().map(|(model, s)| (Which::Inflight(model.clone()), s)))
    }

    /// Sends what was used longest ago to disk until the budget holds; the newest always stays. What cannot be written
    /// stays in memory too.
    fn make_room(&mut self) {
        if let Err(e) = self.spill_beyond_budget() {
            tracing::warn!(error = %e, "a sampler's weights could not be moved to disk");
        }
        self.drop_beyond_budget();
    }

    fn spill_beyond_budget(&mut self) -> Result<()> {
        loop {
            let total = self.all().filter(|(_, s)| s.resident.is_some()).map(|(_, s)| s.bytes).sum::<u64>()
                + self.checkpoints.values().map(|(s, _)| s.bytes()).sum::<u64>();
            if total <= self.budget.memory {
                return Ok(());
            }
            let resident = self.all().filter(|(_, s)| s.resident.is_some());
            let snapshot = resident.min_by_key(|(_, s)| s.used).map(|(which, s)| (s.used, which));
            let checkpoint = self.checkpoints.iter().map(|(dir, (_, used))| (*used, dir.clone())).min();
            let age = |used: Option<u64>| used.unwrap_or(u64::MAX);
            let (s, c) = (age(snapshot.as_ref().map(|s| s.0)), age(checkpoint.as_ref().map(|c| c.0)));
            match (snapshot, checkpoint) {
                _ if s.min(c) >= self.uses => return Ok(()),
                (Some((_, which)), _) if s < c => self.spill(&which)?,
                (_, Some((_, dir))) => {
                    self.checkpoints.remove(&dir);
                }
                _ => return Ok(()),
            }
        }
    }

    fn spill(&mut self, which: &Which) -> Result<()> {
        let files = self.files.clone();
        let Some(snapshot) = self.find(which) else { return Ok(()) };
        if let Some(source) = &snapshot.resident
            && !files.has(&snapshot.origin)
        {
            files.write(&snapshot.origin, &Files::image(&snapshot.origin, source), &snapshot.base.dir)?;
        }
        snapshot.resident = None;
        Ok(())
    }

    /// Forgets the snapshots in files that were used longest ago, until the files' budget holds.
    fn drop_beyond_budget(&mut self) {
        loop {
            let spilled = || self.all().filter(|(_, s)| s.resident.is_none());
            if spilled().map(|(_, s)| s.bytes).sum::<u64>() <= self.budget.disk {
                return;
            }
            let Some((which, _)) = spilled().min_by_key(|(_, s)| s.used) else { return };
            let gone = match &which {
                Which::Of(id) => self.snapshots.remove(id),
                Which::Inflight(model) => self.inflight.remove(model),
            };
            let Some(gone) = gone else { return };
            tracing::info!(samplers = ?gone.origin.samplers, "weights dropped: TINDERBOX_SNAPSHOT_DISK_BYTES is reached");
            self.files.remove(&gone.origin);
            if gone.origin.inflight {
                self.followers.retain(|_, model| *model != gone.origin.run);
            }
        }
    }
}
