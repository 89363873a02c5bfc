//! The engine through its handle: neighbours change no bit, order is kept, failures stay where they belong.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use tinderbox::command::{
    AdamParams, Command, Datum, LoraConfig, Loss, LossInputs, Origin, Outcome, Restore, RunCommand, RunKind,
    SampleOutput, SampleRequest, SampleSource, SamplingParams, Save, Stop,
};
use tinderbox::config::device::{Device, DeviceChoice, Dtype};
use tinderbox::config::limits::Limits;
use tinderbox::engine::handle::{Handle, Keeper, NoKeeper};
use tinderbox::engine::{ModelSource, spawn};
use tinderbox::error::Result;
use tinderbox::ids::{ModelId, OwnerId, RequestId, SamplerId, SessionId};

pub const BASE: &str = "tiny";
const VOCAB: u32 = 64;

pub struct Engine {
    pub handle: Handle,
    dir: PathBuf,
    /// Gone with the engine.
    _temporary: Option<tempfile::TempDir>,
}

impl Engine {
    pub fn start(limits: Limits) -> Self {
        Self::kept_by(limits, Arc::new(NoKeeper), || ())
    }

    /// With somebody who is told what the engine keeps on disk, and when it has broken down.
    pub fn kept_by(limits: Limits, keeper: Arc<dyn Keeper>, broken: impl Fn() + Send + 'static) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut engine = Self::in_dir(temporary.path(), limits, keeper, broken);
        engine._temporary = Some(temporary);
        engine
    }

    /// Over a data directory that is there already.
    pub fn over(dir: &Path, limits: Limits) -> Self {
        Self::in_dir(dir, limits, Arc::new(NoKeeper), || ())
    }

    fn in_dir(dir: &Path, limits: Limits, keeper: Arc<dyn Keeper>, broken: impl Fn() + Send + 'static) -> Self {
        let model = dir.join("model");
        std::fs::create_dir(&model).unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(golden.join(file), model.join(file)).unwrap();
        }
        std::fs::write(model.join("tokenizer.json"), TOKENIZER).unwrap();
        let sources = [ModelSource { name: BASE.into(), dir: model }];
        let device = Device { choice: DeviceChoice::Flex, dtype: Dtype::F32 };
        let handle = spawn(&sources, &device, dir, &limits, keeper, broken).unwrap();
        Self { handle, dir: dir.into(), _temporary: None }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn submit(&self, command: Command) -> Receiver<Result<Outcome>> {
        let (tx, rx) = channel();
        self.handle.submit(command, Box::new(move |result| tx.send(result).unwrap_or(())));
        rx
    }

    pub fn sample(&self, owner: &str, request: SampleRequest) -> Receiver<Result<Outcome>> {
        let origin = Origin {
            owner: OwnerId(owner.into()),
            session: SessionId(format!("session of {owner}")),
            promise: RequestId::random(),
        };
        self.submit(Command::Sample { origin, request })
    }

    pub fn run(&self, model: &str, seq: u64, command: RunCommand) -> Receiver<Result<Outcome>> {
        self.submit(Command::Run { owner: OwnerId(format!("owner of {model}")), model: id(model), seq, command })
    }

    pub fn create(&self, model: &str, rank: usize) {
        self.create_for(&format!("owner of {model}"), model, rank);
    }

    pub fn create_for(&self, owner: &str, model: &str, rank: usize) {
        let config = LoraConfig { rank, seed: 7, train_attn: true, train_mlp: true, train_unembed: true };
        let create = RunCommand::Create { base: BASE.into(), kind: RunKind::Lora(config), restore: None };
        let command = Command::Run { owner: OwnerId(owner.into()), model: id(model), seq: 0, command: create };
        self.submit(command).recv().unwrap().unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.handle.shutdown(Box::new(|| ()));
    }
}

const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
"pre_tokenizer":null,"post_processor":null,"decoder":null,
"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}"#;

pub fn id(model: &str) -> ModelId {
    ModelId(format!("s:train:{model}"))
}

pub fn datum(length: u32, salt: u32) -> Datum {
    let ids = |shift: u32| (0..length).map(|i| (i * 7 + salt * 13 + shift) % VOCAB).collect::<Vec<_>>();
    Datum { tokens: ids(0), targets: ids(3), k: 1, two_dimensional: false, inputs: LossInputs::default() }
}

pub fn fb(data: Vec<Datum>) -> RunCommand {
    RunCommand::ForwardBackward { data, loss: Loss::CrossEntropy, forward_only: false }
}

pub fn step(learning_rate: f64) -> RunCommand {
    RunCommand::OptimStep(AdamParams { learning_rate, eps: 1e-4, ..AdamParams::default() })
}

pub fn sample(source: SampleSource, seed: u64, num_samples: usize, max_tokens: usize) -> SampleRequest {
    SampleRequest {
        base: BASE.into(),
        source,
        prompt: (0..9).map(|i| (i * 5 + seed as u32) % VOCAB).collect(),
        num_samples,
        params: SamplingParams { max_tokens, seed, stop: Stop::Never, temperature: 1.0, top_k: 0, top_p: 1.0 },
        prompt_logprobs: true,
        prompt_logprobs_last_n: None,
        topk_prompt_logprobs: 0,
        topk_sample_logprobs: 0,
        prompt_targets: None,
        prompt_alt_tokens_k: 0,
    }
}

pub fn sampled(outcome: Result<Outcome>) -> SampleOutput {
    match outcome {
        Ok(Outcome::Sampled(output)) => output,
        other => panic!("not a sample: {other:?}"),
    }
}

pub fn bits(output: &SampleOutput) -> Sequences {
    let one = |s: &tinderbox::command::Sequence| (s.tokens.clone(), s.logprobs.iter().map(|x| x.to_bits()).collect());
    output.sequences.iter().map(one).collect()
}

pub fn logprobs(outcome: Result<Outcome>) -> Vec<Vec<u32>> {
    match outcome {
        Ok(Outcome::ForwardBackward { outputs, .. }) => {
            outputs.iter().map(|o| o.logprobs.iter().map(|x| x.to_bits()).collect()).collect()
        }
        other => panic!("not logprobs: {other:?}"),
    }
}

/// Tokens and logprobs of each sequence, the logprobs as bits.
pub type Sequences = Vec<(Vec<u32>, Vec<u32>)>;

/// Three steps of a run (logprobs of each datum as bits) and two samples of what it became.
fn life(engine: &Engine, neighbours: impl Fn(u64)) -> (Vec<Vec<Vec<u32>>>, Vec<Sequences>) {
    let mut passes = Vec::new();
    for i in 0..3 {
        neighbours(i);
        let data = vec![datum(11, 1), datum(40, 2), datum(1, 3), datum(29, 4)];
        let pass = engine.run("mine", 2 * i + 1, fb(data));
        let stepped = engine.run("mine", 2 * i + 2, step(0.01));
        passes.push(logprobs(pass.recv().unwrap()));
        stepped.recv().unwrap().unwrap();
    }
    let sampler = SamplerId("s:sample:0".into());
    engine.run("mine", 7, RunCommand::Save(Save::Snapshot { sampler: sampler.clone() })).recv().unwrap().unwrap();
    neighbours(9);
    let requests = [sample(SampleSource::Snapshot(sampler), 3, 4, 20), sample(SampleSource::Base, 4, 2, 20)];
    let pending = requests.map(|r| engine.sample("me", r));
    (passes, pending.map(|p| bits(&sampled(p.recv().unwrap()))).into())
}

#[test]
fn neighbours_change_no_bit_of_training_or_sampling() {
    let alone = {
        let engine = Engine::start(Limits { pass_tokens: 64, ..Limits::default() });
        engine.create("mine", 4);
        life(&engine, |_| {})
    };
    let engine = Engine::start(Limits { pass_tokens: 300, ..Limits::default() });
    engine.create("mine", 4);
    engine.create("diverged", 8);
    engine.create("long", 2);
    // Its weights become infinite, so that everything of it is NaN from here on.
    engine.run("diverged", 1, fb(vec![datum(5, 9)]));
    engine.run("diverged", 2, step(1e38)).recv().unwrap().unwrap();
    let beside = life(&engine, |i| {
        let seq = 10 + 2 * i;
        for skipped in 3..seq {
            engine.handle.skip(id("diverged"), skipped);
        }
        for skipped in 1..seq {
            engine.handle.skip(id("long"), skipped);
        }
        engine.run("diverged", seq, fb(vec![datum(30, 5), datum(3, 6)]));
        engine.run("long", seq, fb(vec![datum(400, 7), datum(17, 8)]));
        for seed in 20..26 {
            engine.sample("other", sample(SampleSource::Base, seed, 3, 15));
        }
    });
    assert_eq!(alone.0, beside.0, "training");
    assert_eq!(alone.1, beside.1, "samples");
}

#[test]
fn requests_of_a_full_run_that_share_a_pass_all_count() {
    let norm = |pass_tokens| {
        let engine = Engine::start(Limits { pass_tokens, ..Limits::default() });
        let create = RunCommand::Create { base: BASE.into(), kind: RunKind::Full, restore: None };
        engine.run("full", 0, create).recv().unwrap().unwrap();
        // Number 2 waits for number 1, so that both are ready when a pass is formed.
        engine.run("full", 2, fb(vec![datum(9, 2)]));
        engine.run("full", 1, fb(vec![datum(11, 1)]));
        match engine.run("full", 3, step(0.0)).recv().unwrap() {
            Ok(Outcome::OptimStep { metrics }) => metrics[0].1.to_bits(),
            other => panic!("no step: {other:?}"),
        }
    };
    assert_eq!(norm(2048), norm(8), "one pass and two give the same gradient");
}

#[test]
fn a_sample_depends_on_its_seed_and_index_alone() {
    let engine = Engine::start(Limits::default());
    let run = |n| bits(&sampled(engine.sample("me", sample(SampleSource::Base, 5, n, 12)).recv().unwrap()));
    let (one, six) = (run(1), run(6));
    assert_eq!(one[0], six[0]);
    assert_ne!(six[0], six[1]);
    assert_eq!(six, run(6));
}

#[test]
fn a_diverged_run_is_told_and_others_go_on() {
    let engine = Engine::start(Limits::default());
    engine.create("bad", 4);
    engine.create("good", 4);
    engine.run("bad", 1, fb(vec![datum(6, 1)]));
    engine.run("bad", 2, step(1e38)).recv().unwrap().unwrap();
    let failed = engine.run("bad", 3, fb(vec![datum(6, 1)]));
    let fine = engine.run("good", 1, fb(vec![datum(6, 1)]));
    let error = failed.recv().unwrap().unwrap_err();
    assert!(error.message.contains("diverged"), "{error}");
    assert!(!logprobs(fine.recv().unwrap()).is_empty());
}

#[test]
fn a_restored_run_goes_on_bit_for_bit() {
    let engine = Engine::start(Limits::default());
    engine.create("a", 4);
    let train = |model: &str, seq| {
        engine.run(model, seq, fb(vec![datum(12, 1), datum(8, 2)]));
        engine.run(model, seq + 1, step(0.02)).recv().unwrap().unwrap();
    };
    train("a", 1);
    let dir = engine.path("saved");
    let saved = engine.run("a", 3, RunCommand::Save(Save::Training { dir: dir.clone() })).recv().unwrap().unwrap();
    assert!(matches!(saved, Outcome::Saved { size_bytes } if size_bytes > 0));
    let config = LoraConfig { rank: 4, seed: 1, train_attn: true, train_mlp: true, train_unembed: true };
    let restore = Some(Restore { dir, optimizer: true });
    let create = RunCommand::Create { base: BASE.into(), kind: RunKind::Lora(config), restore };
    engine.run("b", 0, create).recv().unwrap().unwrap();
    train("a", 4);
    train("b", 1);
    let probe = |model: &str, seq| logprobs(engine.run(model, seq, fb(vec![datum(20, 3)])).recv().unwrap());
    assert_eq!(probe("a", 6), probe("b", 3));
}

#[test]
fn a_snapshot_keeps_its_weights_while_training_goes_on() {
    let engine = Engine::start(Limits { snapshot_bytes: 1 << 16, ..Limits::default() });
    engine.create("a", 4);
    let train = |seq| {
        engine.run("a", seq, fb(vec![datum(12, 1)]));
        engine.run("a", seq + 1, step(0.05)).recv().unwrap().unwrap();
    };
    let keep = |seq, n: u64| {
        let sampler = SamplerId(format!("s:sample:{n}"));
        let save = RunCommand::Save(Save::Snapshot { sampler: sampler.clone() });
        engine.run("a", seq, save).recv().unwrap().unwrap();
        sampler
    };
    let look = |s: &SamplerId| {
        bits(&sampled(engine.sample("me", sample(SampleSource::Snapshot(s.clone()), 3, 2, 8)).recv().unwrap()))
    };
    train(1);
    let old = keep(3, 0);
    let before = look(&old);
    train(4);
    assert_eq!(look(&old), before);
    assert_ne!(look(&keep(6, 1)), before);
    // More snapshots than memory is given for: the old one comes back from disk, the same to the bit.
    for n in 0..40 {
        train(7 + 3 * n);
        keep(9 + 3 * n, 2 + n);
    }
    assert!(engine.path("snapshots").read_dir().unwrap().next().is_some(), "nothing was sent to disk");
    assert_eq!(look(&old), before);
}

#[test]
fn unloading_fails_what_waits() {
    let engine = Engine::start(Limits::default());
    engine.create("a", 2);
    let waiting = engine.run("a", 5, step(0.1));
    engine.run("a", tinderbox::engine::handle::NOW, RunCommand::Unload).recv().unwrap().unwrap();
    assert!(waiting.recv().unwrap().is_err());
    assert!(engine.run("a", 6, step(0.1)).recv().unwrap().is_err());
}

#[test]
fn one_owner_cannot_keep_another_waiting_and_an_ended_session_frees_its_slots() {
    let engine = Engine::start(Limits { decode_sequences: 4, ..Limits::default() });
    let flood = engine.sample("flood", sample(SampleSource::Base, 1, 500, 400));
    let small = engine.sample("small", sample(SampleSource::Base, 2, 2, 5));
    sampled(small.recv().unwrap());
    assert!(flood.try_recv().is_err(), "the flood would have had to finish first");
    engine.handle.end_session(SessionId("session of flood".into()));
    let error = flood.recv().unwrap().unwrap_err();
    assert!(error.message.contains("session"), "{error}");
}

#[test]
fn samples_wait_for_cache_and_all_come() {
    let generous = Engine::start(Limits::default());
    let request = || sample(SampleSource::Base, 8, 12, 30);
    let want = bits(&sampled(generous.sample("me", request()).recv().unwrap()));
    // Room for two sequences of 39 tokens: 2 layers x 2 x 32 values x 4 bytes a token.
    let tight = Engine::start(Limits { kv_cache_bytes: Some(2 * 39 * 512), ..Limits::default() });
    assert_eq!(bits(&sampled(tight.sample("me", request()).recv().unwrap())), want);
    let error = tight.sample("me", sample(SampleSource::Base, 8, 1, 500)).recv().unwrap().unwrap_err();
    assert!(error.message.contains("cache"), "{error}");
}

#[test]
fn a_cancelled_sample_ends_and_others_go_on() {
    let engine = Engine::start(Limits::default());
    let origin = |promise: &RequestId| Origin {
        owner: OwnerId("me".into()),
        session: SessionId("s".into()),
        promise: promise.clone(),
    };
    let promise = RequestId::random();
    let long = sample(SampleSource::Base, 1, 50, 400);
    let cancelled = engine.submit(Command::Sample { origin: origin(&promise), request: long });
    let other = engine.sample("me", sample(SampleSource::Base, 2, 1, 5));
    engine.handle.cancel(promise);
    assert!(cancelled.recv().unwrap().unwrap_err().message.contains("cancelled"));
    sampled(other.recv().unwrap());
}

#[test]
fn stopping_waits_for_a_save_that_is_being_written() {
    let engine = Engine::start(Limits::default());
    engine.create("a", 8);
    let dir = engine.path("late");
    let saved = engine.run("a", 1, RunCommand::Save(Save::Training { dir: dir.clone() }));
    let (tx, stopped) = channel();
    engine.handle.shutdown(Box::new(move || tx.send(()).unwrap_or(())));
    stopped.recv().unwrap();
    // Either it was begun and is complete, or it was not begun and was told so.
    assert_eq!(saved.recv().unwrap().is_ok(), dir.join("tinderbox.json").is_file());
}
