//! What several targets share: a small model to check requests against, what a checked datum promises, files in memory.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;
use tinderbox::api::fuzzing::Checked;
use tinderbox::command::{Datum, Loss};
use tinderbox::engine::handle::ModelInfo;

pub const MAX_DATUMS: usize = 64;

/// Small, so that limits are met by small inputs.
pub fn model() -> ModelInfo {
    ModelInfo {
        name: "fuzzed".into(),
        dir: PathBuf::new(),
        arch: "qwen3".into(),
        vocab_size: 32,
        max_context_length: 64,
        eos_ids: vec![2],
    }
}

/// Everything behind `validate` relies on this.
pub fn obeys((data, loss, _): &Checked) {
    assert!((1..=MAX_DATUMS).contains(&data.len()), "{} datums", data.len());
    data.iter().for_each(|d| datum_obeys(d, loss));
    match loss {
        Loss::Ppo { clip_low, clip_high }
        | Loss::Cispo { clip_low, clip_high }
        | Loss::Gspo { clip_low, clip_high } => {
            assert!(clip_low.is_finite() && clip_high.is_finite() && clip_low <= clip_high);
        }
        Loss::Dro { beta: x } | Loss::StableReinforce { kl_coeff: x } => assert!(x.is_finite()),
        Loss::CrossEntropy | Loss::ImportanceSampling => {}
        Loss::Custom(_) => panic!("nothing was uploaded"),
    }
}

fn datum_obeys(d: &Datum, loss: &Loss) {
    let (model, length) = (model(), d.tokens.len());
    assert!((1..=model.max_context_length).contains(&length), "{length} tokens");
    assert!(d.k >= 1 && d.targets.len() == length * d.k, "{} targets, k {}", d.targets.len(), d.k);
    assert!(d.tokens.iter().chain(&d.targets).all(|id| (*id as usize) < model.vocab_size));
    let size = |values: &Option<Vec<f32>>, n: usize| {
        values.as_ref().is_none_or(|v| v.len() == n && v.iter().all(|x| x.is_finite()))
    };
    let i = &d.inputs;
    assert!(size(&i.weights, length * d.k), "weights");
    assert!([&i.logprobs, &i.advantages, &i.sequence_ratio_mask].into_iter().all(|v| size(v, length)), "inputs");
    let needed = !matches!(loss, Loss::CrossEntropy);
    assert!(!needed || (d.k == 1 && i.logprobs.is_some() && i.advantages.is_some()), "an input is missing");
    assert!(!matches!(loss, Loss::Gspo { .. }) || i.sequence_ratio_mask.is_some());
}

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// For targets whose code catches panics of libraries: libFuzzer's own hook ends the process at these too.
pub fn panics_may_be_caught() {
    set_hook(Box::new(|panic| *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string()));
}

/// Ends the process at a panic that nobody caught.
pub fn or_abort(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        eprintln!("{}", LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner));
        std::process::abort();
    }
}

/// A directory in memory where the system has one.
pub fn dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary directory")
}
