//! A run's whole state in one file: weights, gradients, moments, step, and the number of its next request; checksummed.
//!
//! Layout: `TBrun001`, the length of the header (u64), the header (JSON), the arrays (f32) in its order, CRC-32 of all
//! that (u32); little-endian. A file is complete under its name or not there.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::command::RunKind;
use crate::engine::models::{Base, Moments, Run, Trained};
use crate::error::{Error, Result};
use crate::kernels::{Mat, download, upload};
use crate::model::grads::Grads;
use crate::model::weights::{Adapter, BaseWeights};

const MAGIC: [u8; 8] = *b"TBrun001";
/// No header is longer: a few bytes for each array.
const MAX_HEADER: u64 = 64 << 20;
const EXTENSION: &str = "state";

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Header {
    /// Served name of the base model.
    base: String,
    kind: RunKind,
    /// The number of the request that comes next.
    next: u64,
    /// Steps of the optimiser.
    step: u64,
    arrays: Vec<Array>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
struct Array {
    part: Part,
    /// Which of the run's trained matrices.
    position: usize,
    shape: [usize; 2],
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Part {
    Weights,
    Gradient,
    M,
    V,
}

/// A run's state, copied to host memory.
pub struct Image {
    header: Header,
    data: Vec<Vec<f32>>,
}

impl Image {
    /// Of a run before number `next`.
    pub fn of(run: &Run, next: u64) -> Self {
        let kind = match &run.trained {
            Trained::Lora(a) => RunKind::Lora(a.config),
            Trained::Full(_) => RunKind::Full,
        };
        let (mut arrays, mut data) = (Vec::new(), Vec::new());
        let mut add = |part, position, mat: &Mat| {
            let [rows, cols] = mat.dims();
            arrays.push(Array { part, position, shape: [rows, cols] });
            data.push(download(mat.clone()));
        };
        run.trained.mats().iter().enumerate().for_each(|(i, m)| add(Part::Weights, i, m));
        let grads = run.grads.mats().iter().enumerate().filter_map(|(i, g)| Some((i, g.as_ref()?)));
        grads.for_each(|(i, g)| add(Part::Gradient, i, g));
        run.moments.m.iter().enumerate().for_each(|(i, m)| add(Part::M, i, m));
        run.moments.v.iter().enumerate().for_each(|(i, v)| add(Part::V, i, v));
        let base = run.base_name.clone();
        Self { header: Header { base, kind, next, step: run.moments.step, arrays }, data }
    }

    /// Whether every weight is a number.
    fn is_finite(&self) -> bool {
        let weights = self.header.arrays.iter().zip(&self.data).filter(|(a, _)| a.part == Part::Weights);
        weights.into_iter().all(|(_, data)| data.iter().all(|x| x.is_finite()))
    }

    /// Writes it beside its place and syncs it; [`Staged::commit`] puts it there. Weights that are no numbers are refused.
    pub fn staged(&self, dir: &Path) -> Result<Staged> {
        if !self.is_finite() {
            return Err(Error::server("weights that are no numbers are not kept"));
        }
        let target = path(dir, self.header.next);
        let staged = Staged { temporary: target.with_extension("tmp"), target, next: self.header.next };
        let failed = |e: std::io::Error| Error::server(format!("cannot write {}: {e}", staged.temporary.display()));
        let header = serde_json::to_vec(&self.header).map_err(|e| Error::server(e.to_string()))?;
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut out = Summed::new(BufWriter::with_capacity(1 << 20, options.open(&staged.temporary).map_err(failed)?));
        let mut write = |bytes: &[u8]| out.write_all(bytes).map_err(failed);
        write(&MAGIC)?;
        write(&(header.len() as u64).to_le_bytes())?;
        write(&header)?;
        for values in &self.data {
            for block in values.chunks(1 << 16) {
                write(&block.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
            }
        }
        let crc = out.crc.clone().finalize();
        let mut file = out.inner;
        file.write_all(&crc.to_le_bytes()).map_err(failed)?;
        let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
        file.sync_all().map_err(failed)?;
        Ok(staged)
    }
}

/// A written file that is not in its place yet; it goes when it is dropped before.
pub struct Staged {
    temporary: PathBuf,
    target: PathBuf,
    next: u64,
}

impl Staged {
    /// Puts the file in its place, and removes those it replaces.
    pub fn commit(self) -> Result<()> {
        let dir = self.target.parent().expect("a state file lies in its run's directory");
        let failed = |e: std::io::Error| Error::server(format!("cannot write {}: {e}", self.target.display()));
        fs::rename(&self.temporary, &self.target).map_err(failed)?;
        File::open(dir).and_then(|d| d.sync_all()).map_err(failed)?;
        for (_, older) in files(dir).into_iter().filter(|(next, _)| *next < self.next) {
            if let Err(e) = fs::remove_file(&older) {
                tracing::warn!(file = %older.display(), error = %e, "an old state of a run stays");
            }
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Where the state before number `next` lies in a run's directory.
pub fn path(dir: &Path, next: u64) -> PathBuf {
    dir.join(format!("{next:010}.{EXTENSION}"))
}

/// The state files of a run's directory with the numbers that come next, the newest first.
pub fn files(dir: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let numbered = entries.filter(|p| p.extension().is_some_and(|e| e == EXTENSION)).filter_map(|path| {
        let next = path.file_stem()?.to_str()?.parse().ok()?;
        Some((next, path))
    });
    let mut all: Vec<_> = numbered.collect();
    all.sort_by(|a, b| b.cmp(a));
    all
}

/// Reads a file completely and compares its checksum.
///
/// # Errors
/// Server errors that name the file and what is wrong with it.
pub fn check(path: &Path) -> Result<()> {
    read(path).map(|_| ())
}

/// Reads a run's state over its base model.
///
/// # Errors
/// Server errors that name the file: it is damaged, or was written over another base model.
pub fn load(path: &Path, kind: RunKind, base: &Base, device: &Device) -> Result<(Trained, Grads, Moments)> {
    let (header, data) = read(path)?;
    let fits = |why: &str| Error::server(format!("{} does not fit its run: {why}", path.display()));
    if header.kind != kind {
        return Err(fits("another rank, seed or kind"));
    }
    let fresh = match kind {
        RunKind::Lora(lora) => Trained::Lora(Adapter::init(lora, base.config(), device)),
        RunKind::Full => Trained::Full(base.weights.trainable()),
    };
    let shapes: Vec<[usize; 2]> = fresh.mats().iter().map(Mat::dims).collect();
    let count = shapes.len();
    let (mut weights, mut grads) = (Vec::with_capacity(count), Grads::new(count));
    let mut moments = Moments { step: header.step, ..Moments::default() };
    for (array, values) in header.arrays.into_iter().zip(data) {
        if shapes.get(array.position) != Some(&array.shape) {
            return Err(fits("its base model has changed"));
        }
        let mat = upload(values, array.shape, device);
        match array.part {
            Part::Weights => weights.push(mat),
            Part::Gradient => grads.update(array.position, |_| mat),
            Part::M => moments.m.push(mat),
            Part::V => moments.v.push(mat),
        }
    }
    let whole = |n: usize| n == count || n == 0;
    if weights.len() != count || !whole(moments.m.len()) || moments.m.len() != moments.v.len() {
        return Err(fits("matrices are missing"));
    }
    let trained = match fresh {
        Trained::Lora(a) => Trained::Lora(Adapter::new(a.config, base.config(), weights)),
        Trained::Full(_) => Trained::Full(BaseWeights::new(Arc::clone(&base.weights.config), weights)),
    };
    Ok((trained, grads, moments))
}

fn read(path: &Path) -> Result<(Header, Vec<Vec<f32>>)> {
    let damaged = |why: &str| Error::server(format!("{} is damaged: {why}", path.display()));
    let short = |_| damaged("it ends too early");
    let file = File::open(path).map_err(|e| Error::server(format!("cannot read {}: {e}", path.display())))?;
    let length = file.metadata()?.len();
    let mut input = Summed::new(BufReader::with_capacity(1 << 20, file));
    let mut word = [0; 8];
    input.read_exact(&mut word).map_err(short)?;
    if word != MAGIC {
        return Err(damaged("it is no state of a run that this version knows"));
    }
    input.read_exact(&mut word).map_err(short)?;
    let size = u64::from_le_bytes(word);
    if size > MAX_HEADER.min(length) {
        return Err(damaged("its header"));
    }
    let mut header = vec![0; size as usize];
    input.read_exact(&mut header).map_err(short)?;
    let header: Header = serde_json::from_slice(&header).map_err(|_| damaged("its header"))?;
    let values = |a: &Array| a.shape[0].checked_mul(a.shape[1]).and_then(|n| n.checked_mul(4));
    let wanted = header.arrays.iter().map(values).try_fold(20 + size, |sum, n| sum.checked_add(n? as u64));
    if wanted != Some(length) {
        return Err(damaged("its length is not what its header says"));
    }
    let mut data = Vec::with_capacity(header.arrays.len());
    for array in &header.arrays {
        let mut bytes = vec![0; values(array).expect("it was summed before")];
        input.read_exact(&mut bytes).map_err(short)?;
        data.push(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect());
    }
    let crc = input.crc.clone().finalize();
    let mut kept = [0; 4];
    input.inner.read_exact(&mut kept).map_err(short)?;
    if u32::from_le_bytes(kept) != crc {
        return Err(damaged("its checksum"));
    }
    Ok((header, data))
}

/// Sums what passes through.
struct Summed<T> {
    inner: T,
    crc: crc32fast::Hasher,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Self {
        Self { inner, crc: crc32fast::Hasher::new() }
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.crc.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(into)?;
        self.crc.update(&into[..n]);
        Ok(n)
    }
}
