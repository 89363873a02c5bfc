//! What the engine holds in memory: base models, training runs, and the weights that samplers read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use burn::tensor::Device;

use crate::checkpoint;
use crate::command::{LoraConfig, Restore, RunKind, SampleSource};
use crate::engine::handle::ModelInfo;
use crate::engine::weights;
use crate::error::{Error, Result};
use crate::ids::{ModelId, SamplerId};
use crate::kernels::{self, Kernels, Mat, RopeTable};
use crate::model::config::DecoderConfig;
use crate::model::grads::Grads;
use crate::model::import::Import;
use crate::model::rope;
use crate::model::weights::{Adapter, BaseWeights};
use crate::tokenizer::Tokenizer;

/// A model to serve: its name and the directory it is in.
#[derive(Clone, Debug)]
pub struct ModelSource {
    pub name: String,
    pub dir: PathBuf,
}

/// A base model on the device.
pub struct Base {
    /// Distinguishes the weights of a pass from others.
    pub lane: u64,
    pub weights: BaseWeights,
    pub rope: RopeTable,
    pub dir: PathBuf,
    tokenizer: OnceLock<Result<Arc<Tokenizer>>>,
}

impl Base {
    fn load(lane: u64, dir: &Path, device: &Device) -> Result<Self> {
        let config = Arc::new(DecoderConfig::from_dir(dir)?);
        let import = Import::open(dir, &config)?;
        if !dir.join("tokenizer.json").is_file() {
            return Err(Error::user(format!("{}: no tokenizer.json", dir.display())));
        }
        let rope = rope::table(&config, config.max_context_length, device);
        let weights = BaseWeights::load(config, &import, device)?;
        Ok(Self { lane, weights, rope, dir: dir.to_path_buf(), tokenizer: OnceLock::new() })
    }

    pub fn config(&self) -> &DecoderConfig {
        &self.weights.config
    }

    /// Loaded when first needed: a large vocabulary takes longer to read than everything else at start.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>> {
        self.tokenizer.get_or_init(|| Tokenizer::load(&self.dir).map(Arc::new)).clone()
    }
}

/// What a run trains.
#[derive(Clone)]
pub enum Trained {
    Lora(Adapter),
    Full(BaseWeights),
}

impl Trained {
    pub fn mats(&self) -> &[Mat] {
        match self {
            Self::Lora(a) => a.mats(),
            Self::Full(w) => w.mats(),
        }
    }

    pub fn mats_mut(&mut self) -> &mut Vec<Mat> {
        match self {
            Self::Lora(a) => a.mats_mut(),
            Self::Full(w) => w.mats_mut(),
        }
    }

    pub fn num_elements(&self) -> usize {
        match self {
            Self::Lora(a) => a.num_elements(),
            Self::Full(w) => w.num_elements(),
        }
    }
}

/// AdamW's moments; none before the first step.
#[derive(Clone, Default)]
pub struct Moments {
    pub step: u64,
    pub m: Vec<Mat>,
    pub v: Vec<Mat>,
}

/// A training run.
pub struct Run {
    pub base: Arc<Base>,
    pub base_name: String,
    pub lane: u64,
    pub trained: Trained,
    pub grads: Grads,
    pub moments: Moments,
}

impl Run {
    /// The weights a pass of this run goes over.
    pub fn weights(&self) -> &BaseWeights {
        match &self.trained {
            Trained::Lora(_) => &self.base.weights,
            Trained::Full(w) => w,
        }
    }
}

/// Weights to sample from.
#[derive(Clone)]
pub struct Source {
    pub base: Arc<Base>,
    /// Sequences with the same lane decode together.
    pub lane: u64,
    pub trained: Option<Trained>,
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

/// A sampler's weights: at hand, or in a file.
enum Held {
    Resident(Arc<Source>),
    Spilled { dir: PathBuf, base_name: String },
}

/// Everything resident.
pub struct Models {
    pub device: Device,
    pub kernels: &'static dyn Kernels,
    bases: HashMap<String, Arc<Base>>,
    runs: HashMap<ModelId, Run>,
    snapshots: HashMap<SamplerId, (Held, u64)>,
    checkpoints: HashMap<PathBuf, (Arc<Source>, u64)>,
    /// Counts uses, to find what was used longest ago.
    uses: u64,
    next_lane: u64,
    snapshot_bytes: u64,
    /// Where snapshots go that memory has no room for.
    spill_dir: PathBuf,
}

impl Models {
    /// Loads every model; a directory named twice is loaded once.
    pub fn load(sources: &[ModelSource], device: Device, snapshot_bytes: u64, spill_dir: PathBuf) -> Result<Self> {
        let mut by_dir: HashMap<PathBuf, Arc<Base>> = HashMap::new();
        let mut bases = HashMap::new();
        for s in sources {
            let dir = s.dir.canonicalize().map_err(|e| Error::user(format!("model {}: {}: {e}", s.name, s.dir.display())))?;
            let base = match by_dir.get(&dir) {
                Some(base) => base.clone(),
                None => {
                    let lane = by_dir.len() as u64;
                    let base = Base::load(lane, &dir, &device).map_err(|e| e.context(format!("model {}", s.name)))?;
                    let base = Arc::new(base);
                    by_dir.insert(dir, base.clone());
                    base
                }
            };
            bases.insert(s.name.clone(), base);
        }
        // Snapshots belong to samplers of a process that is gone.
        let _ = std::fs::remove_dir_all(&spill_dir);
        Ok(Self {
            kernels: kernels::for_device(&device),
            device,
            next_lane: by_dir.len() as u64,
            bases,
            runs: HashMap::new(),
            snapshots: HashMap::new(),
            checkpoints: HashMap::new(),
            uses: 0,
            snapshot_bytes,
            spill_dir,
        })
    }

    pub fn infos(&self, sources: &[ModelSource]) -> Vec<ModelInfo> {
        let info = |s: &ModelSource| {
            let base = &self.bases[&s.name];
            let c = base.config();
            ModelInfo {
                name: s.name.clone(),
                dir: base.dir.clone(),
                arch: c.model_type.clone(),
                vocab_size: c.vocab_size,
                max_context_length: c.max_context_length,
                eos_ids: c.eos_ids.clone(),
            }
        };
        sources.iter().map(info).collect()
    }

    fn base(&self, name: &str) -> Result<Arc<Base>> {
        self.bases.get(name).cloned().ok_or_else(|| Error::user(format!("model {name:?} is not served here")))
    }

    fn fresh_lane(&mut self) -> u64 {
        self.next_lane += 1;
        self.next_lane - 1
    }

    /// A new run, from its configuration or from a checkpoint.
    pub fn create(&mut self, model: &ModelId, base_name: &str, kind: RunKind, restore: Option<&Restore>) -> Result<()> {
        let base = self.base(base_name)?;
        let trained = match kind {
            RunKind::Lora(config) => Trained::Lora(Adapter::init(config, base.config(), &self.device)),
            RunKind::Full => Trained::Full(base.weights.clone()),
        };
        let lane = match trained {
            Trained::Lora(_) => base.lane,
            Trained::Full(_) => self.fresh_lane(),
        };
        let grads = Grads::new(trained.mats().len());
        let base_name = base_name.to_string();
        let mut run = Run { base, base_name, lane, trained, grads, moments: Moments::default() };
        if let Some(restore) = restore {
            self.restore(&mut run, restore)?;
        }
        self.runs.insert(model.clone(), run);
        Ok(())
    }

    /// Replaces a run's weights, and its moments or none, by a checkpoint's; pending gradients are dropped.
    fn restore(&self, run: &mut Run, restore: &Restore) -> Result<()> {
        let (trained, moments) = weights::load(&restore.dir, restore.optimizer, &run.base, &self.device)?;
        let fits = match (&trained, &run.trained) {
            (Trained::Full(_), Trained::Full(_)) => true,
            (Trained::Lora(a), Trained::Lora(b)) => same_shape(a.config, b.config),
            _ => false,
        };
        if !fits {
            return Err(Error::user("the checkpoint's rank or trained layers differ from the run's"));
        }
        run.grads = Grads::new(trained.mats().len());
        run.trained = trained;
        run.moments = moments;
        Ok(())
    }

    pub fn load_into(&mut self, model: &ModelId, restore: &Restore) -> Result<()> {
        let mut run = self.runs.remove(model).ok_or_else(|| lost(model))?;
        let result = self.restore(&mut run, restore);
        self.runs.insert(model.clone(), run);
        result
    }

    pub fn run(&self, model: &ModelId) -> Option<&Run> {
        self.runs.get(model)
    }

    pub fn run_mut(&mut self, model: &ModelId) -> Option<&mut Run> {
        self.runs.get_mut(model)
    }

    pub fn unload(&mut self, model: &ModelId) -> bool {
        self.runs.remove(model).is_some()
    }

    /// Forgets the snapshots of a session's samplers.
    pub fn drop_snapshots(&mut self, session: &str) {
        let prefix = format!("{session}:sample:");
        self.snapshots.retain(|id, (held, _)| {
            let stays = !id.0.starts_with(&prefix);
            if let (false, Held::Spilled { dir, .. }) = (stays, &held) {
                let _ = std::fs::remove_dir_all(dir);
            }
            stays
        });
    }

    /// Keeps a run's weights as they are now under a sampler's id. Costs nothing until the run's next step.
    pub fn snapshot(&mut self, model: &ModelId, sampler: &SamplerId) -> Result<()> {
        let run = self.runs.get(model).ok_or_else(|| lost(model))?;
        let (base, trained) = (run.base.clone(), run.trained.clone());
        let lane = match trained {
            Trained::Lora(_) => base.lane,
            Trained::Full(_) => self.fresh_lane(),
        };
        self.uses += 1;
        let source = Arc::new(Source { base, lane, trained: Some(trained) });
        self.snapshots.insert(sampler.clone(), (Held::Resident(source), self.uses));
        self.make_room()
    }

    /// The weights of a sample request, read from disk if they are not at hand.
    pub fn source(&mut self, base_name: &str, source: &SampleSource) -> Result<Arc<Source>> {
        self.uses += 1;
        match source {
            SampleSource::Base => {
                let base = self.base(base_name)?;
                Ok(Arc::new(Source { lane: base.lane, base, trained: None }))
            }
            SampleSource::Snapshot(id) => self.snapshot_source(id),
            SampleSource::Checkpoint(dir) => self.checkpoint_source(base_name, dir),
        }
    }

    fn snapshot_source(&mut self, id: &SamplerId) -> Result<Arc<Source>> {
        let gone = || Error::user(format!("sampler {id}: its weights are gone; save them again or sample from a saved path"));
        let uses = self.uses;
        let (held, used) = self.snapshots.get_mut(id).ok_or_else(gone)?;
        *used = uses;
        let (dir, base_name) = match held {
            Held::Resident(source) => return Ok(source.clone()),
            Held::Spilled { dir, base_name } => (dir.clone(), base_name.clone()),
        };
        let source = self.read_source(&base_name, &dir)?;
        let _ = std::fs::remove_dir_all(&dir);
        self.snapshots.insert(id.clone(), (Held::Resident(source.clone()), uses));
        self.make_room()?;
        Ok(source)
    }

    fn checkpoint_source(&mut self, base_name: &str, dir: &Path) -> Result<Arc<Source>> {
        if let Some((source, used)) = self.checkpoints.get_mut(dir) {
            *used = self.uses;
            return Ok(source.clone());
        }
        let source = self.read_source(base_name, dir)?;
        self.checkpoints.insert(dir.to_path_buf(), (source.clone(), self.uses));
        self.make_room()?;
        Ok(source)
    }

    fn read_source(&mut self, base_name: &str, dir: &Path) -> Result<Arc<Source>> {
        let base = self.base(base_name)?;
        let (trained, _) = weights::load(dir, false, &base, &self.device)?;
        let lane = match trained {
            Trained::Lora(_) => base.lane,
            Trained::Full(_) => self.fresh_lane(),
        };
        Ok(Arc::new(Source { base, lane, trained: Some(trained) }))
    }

    /// Sends what was used longest ago to disk until the budget holds; the newest always stays.
    fn make_room(&mut self) -> Result<()> {
        loop {
            let resident = self.snapshots.iter().filter_map(|(id, (held, used))| match held {
                Held::Resident(source) => Some((*used, source.bytes(), id)),
                Held::Spilled { .. } => None,
            });
            let total: u64 = resident.clone().map(|(_, bytes, _)| bytes).sum::<u64>()
                + self.checkpoints.values().map(|(s, _)| s.bytes()).sum::<u64>();
            let oldest_snapshot = resident.min_by_key(|(used, ..)| *used).map(|(used, _, id)| (used, id.clone()));
            let oldest_checkpoint =
                self.checkpoints.iter().min_by_key(|(_, (_, used))| *used).map(|(dir, (_, used))| (*used, dir.clone()));
            if total <= self.snapshot_bytes {
                return Ok(());
            }
            match (oldest_snapshot, oldest_checkpoint) {
                (Some((used, id)), c) if used < self.uses && c.as_ref().is_none_or(|(u, _)| used < *u) => self.spill(&id)?,
                (_, Some((used, dir))) if used < self.uses => {
                    self.checkpoints.remove(&dir);
                }
                _ => return Ok(()),
            }
        }
    }

    fn spill(&mut self, id: &SamplerId) -> Result<()> {
        let Some((Held::Resident(source), used)) = self.snapshots.get(id) else { return Ok(()) };
        let (source, used) = (source.clone(), *used);
        let dir = self.spill_dir.join(uuid::Uuid::new_v4().to_string());
        std::fs::create_dir_all(&self.spill_dir)?;
        let base_name = self.bases.iter().find(|(_, b)| Arc::ptr_eq(b, &source.base)).map(|(name, _)| name.clone());
        let base_name = base_name.expect("a source's base is served");
        let trained = source.trained.as_ref().expect("a snapshot has weights of its own");
        let image = weights::image(&base_name, source.base.config(), trained, None);
        checkpoint::save(&dir, &image, &source.base.dir, &[])?;
        self.snapshots.insert(id.clone(), (Held::Spilled { dir, base_name }, used));
        Ok(())
    }
}

/// The same matrices of the same sizes.
fn same_shape(a: LoraConfig, b: LoraConfig) -> bool {
    LoraConfig { seed: 0, ..a } == LoraConfig { seed: 0, ..b }
}

/// What a command on a run answers that is not there.
pub fn lost(model: &ModelId) -> Error {
    Error::not_found(format!(
        "run {model} is not loaded: it ended, or the server was restarted; create a new run from its last checkpoint"
    ))
}
