//! What the engine holds in memory: base models, training runs, and the weights that samplers read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Device};

use crate::command::{Fault, LoraConfig, Restore, RunKind, SampleSource};
use crate::engine::handle::ModelInfo;
use crate::engine::memory;
use crate::engine::meter::Meter;
use crate::engine::snapshots::{Files, Origin};
use crate::engine::sources::{Budget, Lanes, Source, Sources};
use crate::engine::state;
use crate::engine::weights;
use crate::error::{Error, Result};
use crate::ids::{ModelId, SamplerId, SessionId};
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
    fn load(lane: u64, dir: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let config = Arc::new(DecoderConfig::from_dir(dir)?);
        let import = Import::open(dir, &config)?;
        if !dir.join("tokenizer.json").is_file() {
            return Err(Error::user(format!("{}: no tokenizer.json", dir.display())));
        }
        let rope = rope::table(&config, config.max_context_length, device);
        let weights = BaseWeights::load(config, &import, dtype, device)?;
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
        self.mats().iter().map(|m| m.dims()[0] * m.dims()[1]).sum()
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
    /// Something of its gradient is missing: its next step is refused.
    pub fault: Option<Fault>,
    /// It was marked for it, and the mark stays until a step succeeds.
    pub marked: bool,
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

/// A run that is yet to be created.
#[derive(Clone)]
pub struct Plan {
    pub base: Arc<Base>,
    base_name: String,
    kind: RunKind,
    pub lane: u64,
}

/// Everything resident.
pub struct Models {
    pub device: Device,
    pub kernels: &'static dyn Kernels,
    bases: HashMap<String, Arc<Base>>,
    runs: HashMap<ModelId, Run>,
    sources: Sources,
    /// Bytes that all runs together may come to take.
    pub run_bytes: u64,
    /// Weights of its own get a lane of its own; base models have the first numbers.
    lanes: Lanes,
    /// For whom the device works.
    pub meter: Meter,
}

impl Models {
    /// Loads every model; a directory named twice is loaded once.
    pub fn load(
        sources: &[ModelSource],
        device: Device,
        dtype: DType,
        snapshots: Budget,
        spill_dir: PathBuf,
    ) -> Result<Self> {
        let mut by_dir: HashMap<PathBuf, Arc<Base>> = HashMap::new();
        let mut bases = HashMap::new();
        for s in sources {
            let dir =
                s.dir.canonicalize().map_err(|e| Error::user(format!("model {}: {}: {e}", s.name, s.dir.display())))?;
            let base = match by_dir.get(&dir) {
                Some(base) => base.clone(),
                None => {
                    let lane = by_dir.len() as u64;
                    let base =
                        Base::load(lane, &dir, dtype, &device).map_err(|e| e.context(format!("model {}", s.name)))?;
                    let base = Arc::new(base);
                    by_dir.insert(dir, base.clone());
                    base
                }
            };
            bases.insert(s.name.clone(), base);
        }
        let lanes = Lanes::after(by_dir.len() as u64);
        Ok(Self {
            kernels: kernels::for_device(&device),
            device,
            runs: HashMap::new(),
            meter: Meter::default(),
            run_bytes: u64::MAX,
            sources: Sources::new(snapshots, Files::new(spill_dir), lanes.clone(), &bases),
            bases,
            lanes,
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

    /// The decoder of a served model.
    pub fn config(&self, name: &str) -> Result<&DecoderConfig> {
        self.bases.get(name).map(|b| b.config()).ok_or_else(|| not_served(name))
    }

    fn base(&self, name: &str) -> Result<Arc<Base>> {
        self.bases.get(name).cloned().ok_or_else(|| not_served(name))
    }

    /// Decides what passes of a run to be will go over, so that its requests can be queued before it is created.
    pub fn plan(&self, base_name: &str, kind: RunKind) -> Result<Plan> {
        let base = self.base(base_name)?;
        let lane = if kind == RunKind::Full { self.lanes.fresh() } else { base.lane };
        Ok(Plan { base, base_name: base_name.into(), kind, lane })
    }

    /// A new run, from its configuration or from a checkpoint.
    pub fn create(&mut self, model: &ModelId, plan: Plan, restore: Option<&Restore>) -> Result<()> {
        let Plan { base, base_name, kind, lane } = plan;
        let values = memory::trained_values(base.config(), kind);
        let admitted = self.runs.values().map(|r| memory::run_bytes(r.trained.num_elements())).sum();
        memory::admit_run(values, admitted, self.run_bytes)?;
        let trained = fresh(kind, &base, &self.device);
        let grads = Grads::new(trained.mats().len());
        let moments = Moments::default();
        let mut run = Run { base, base_name, lane, trained, grads, moments, fault: None, marked: false };
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
        run.fault = None;
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

    /// Keeps a run's weights as they are now, at save number `seq`, under a sampler's id. Costs nothing until the run's
    /// next step.
    pub fn snapshot(&mut self, model: &ModelId, sampler: &SamplerId, seq: u64) -> Result<()> {
        let run = self.runs.get(model).ok_or_else(|| lost(model))?;
        self.sources.keep(sampler, model, run, seq);
        Ok(())
    }

    /// Makes them those of all in-flight samplers of the run, `sampler` among them.
    pub fn publish(&mut self, model: &ModelId, sampler: &SamplerId, seq: u64) -> Result<Arc<Source>> {
        let run = self.runs.get(model).ok_or_else(|| lost(model))?;
        Ok(self.sources.publish(sampler, model, run, seq))
    }

    /// A run of an earlier process, from its state file.
    pub fn revive(&mut self, model: &ModelId, plan: Plan, state: &Path) -> Result<()> {
        let Plan { base, base_name, kind, lane } = plan;
        let (trained, grads, moments) = state::load(state, kind, &base, &self.device)?;
        self.runs
            .insert(model.clone(), Run { base, base_name, lane, trained, grads, moments, fault: None, marked: false });
        Ok(())
    }

    /// Weights and moments become those of a state file, without one those the run began with; pending gradients are
    /// dropped.
    pub fn roll_back(&mut self, model: &ModelId, state: Option<&Path>) -> Result<()> {
        let run = self.runs.get_mut(model).ok_or_else(|| lost(model))?;
        let kind = match &run.trained {
            Trained::Lora(a) => RunKind::Lora(a.config),
            Trained::Full(_) => RunKind::Full,
        };
        let (trained, moments) = match state {
            Some(state) => {
                let (trained, _, moments) = state::load(state, kind, &run.base, &self.device)?;
                (trained, moments)
            }
            None => (fresh(kind, &run.base, &self.device), Moments::default()),
        };
        run.grads = Grads::new(trained.mats().len());
        (run.trained, run.moments, run.fault, run.marked) = (trained, moments, None, false);
        Ok(())
    }

    /// Removes the files of a snapshot that no sampler reads.
    pub fn remove_unless_wanted(&self, origin: &Origin) {
        self.sources.remove_unless_wanted(origin);
    }

    /// The snapshots of a run that are in memory alone, and where their files go.
    pub fn unsaved_snapshots(&self, model: &ModelId) -> (Vec<(Origin, Arc<Source>)>, Files) {
        (self.sources.unsaved(model), self.sources.files().clone())
    }

    /// Forgets the snapshots of a session's samplers.
    pub fn drop_snapshots(&mut self, session: &SessionId) {
        self.sources.drop_session(session);
    }

    /// The weights of a sample request, read from disk if they are not at hand.
    pub fn source(&mut self, base_name: &str, source: &SampleSource) -> Result<Arc<Source>> {
        let base = self.base(base_name)?;
        self.sources.get(base, base_name, source, &self.device)
    }
}

/// What a new run trains.
fn fresh(kind: RunKind, base: &Base, device: &Device) -> Trained {
    match kind {
        RunKind::Lora(config) => Trained::Lora(Adapter::init(config, base.config(), device)),
        RunKind::Full => Trained::Full(base.weights.trainable()),
    }
}

fn not_served(name: &str) -> Error {
    Error::user(format!("model {name:?} is not served here"))
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
