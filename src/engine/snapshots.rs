//! Snapshots of samplers in files: where they lie, whose they are, which of them an earlier process left.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Checkpoint};
use crate::engine::models::Run;
use crate::engine::sources::Source;
use crate::engine::weights;
use crate::error::{Error, Result};
use crate::ids::{ModelId, SamplerId};

/// Whose weights a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Who samples from them: one sampler, or all in-flight samplers of the run.
    pub samplers: Vec<SamplerId>,
    pub run: ModelId,
    /// Served name of the base model.
    pub base: String,
    /// The `seq_id` of the save that made them.
    pub version: u64,
    pub inflight: bool,
}

impl Origin {
    pub fn of(run: &Run, model: &ModelId, version: u64, samplers: Vec<SamplerId>, inflight: bool) -> Self {
        Self { samplers, run: model.clone(), base: run.base_name.clone(), version, inflight }
    }

    fn name(&self) -> String {
        match self.samplers.first() {
            Some(sampler) if !self.inflight => sampler.dir_name(),
            _ => format!("{}.{}", self.run.dir_name(), self.version),
        }
    }
}

/// A directory of snapshots: each a checkpoint in a directory of its own, and a file beside it that says whose it is.
#[derive(Clone)]
pub struct Files(PathBuf);

impl Files {
    pub fn new(root: PathBuf) -> Self {
        Self(root)
    }

    pub fn dir(&self, origin: &Origin) -> PathBuf {
        self.0.join(origin.name())
    }

    fn note(&self, origin: &Origin) -> PathBuf {
        self.0.join(format!("{}.json", origin.name()))
    }

    pub fn has(&self, origin: &Origin) -> bool {
        self.dir(origin).is_dir()
    }

    /// Its weights, copied to host memory.
    pub fn image(origin: &Origin, source: &Source) -> Checkpoint {
        let trained = source.trained.as_ref().expect("a snapshot has weights of its own");
        weights::image(&origin.base, source.base.config(), trained, None)
    }

    /// Nothing is done when it is there already: snapshots never change.
    pub fn write(&self, origin: &Origin, image: &Checkpoint, base_dir: &Path) -> Result<()> {
        if self.has(origin) {
            return Ok(());
        }
        let note = serde_json::to_vec(origin).map_err(|e| Error::server(e.to_string()))?;
        fs::create_dir_all(&self.0)?;
        fs::write(self.note(origin), note)?;
        match checkpoint::save(&self.dir(origin), image, base_dir, &[]) {
            // Another writer was quicker.
            Err(_) if self.has(origin) => Ok(()),
            done => done.map(|_| ()),
        }
    }

    /// Best effort: what stays costs disk until the next start.
    pub fn remove(&self, origin: &Origin) {
        let _ = fs::remove_file(self.note(origin));
        let _ = fs::remove_dir_all(self.dir(origin));
    }

    /// What lies there, with the bytes it takes. Notes without weights and weights without a note go.
    pub fn found(&self) -> Vec<(Origin, u64)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|e| e.path());
        let (dirs, notes): (Vec<_>, Vec<_>) = entries.partition(|p| p.is_dir());
        let read = |path: &PathBuf| serde_json::from_slice::<Origin>(&fs::read(path).ok()?).ok();
        let origins: Vec<Origin> = notes.iter().filter_map(read).filter(|o| self.has(o)).collect();
        for dir in dirs.iter().filter(|dir| !origins.iter().any(|o| self.dir(o) == **dir)) {
            let _ = fs::remove_dir_all(dir);
        }
        for note in notes.iter().filter(|note| !origins.iter().any(|o| self.note(o) == **note)) {
            let _ = fs::remove_file(note);
        }
        origins
            .into_iter()
            .map(|o| (checkpoint::size(&self.dir(&o)).unwrap_or(0), o))
            .map(|(bytes, o)| (o, bytes))
            .collect()
    }
}
