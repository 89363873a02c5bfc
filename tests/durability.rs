//! What outlives the engine: states of runs, snapshots of samplers; and what happens to runs whose numbers are not finite.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tinderbox::command::{Fault, LoraConfig, Outcome, Restore, RunCommand, RunKind, SampleSource, Save};
use tinderbox::config::limits::Limits;
use tinderbox::engine::handle::Keeper;
use tinderbox::engine::keep;
use tinderbox::ids::{ModelId, SamplerId, SessionId};

use crate::engine::{BASE, Engine, bits, datum, fb, id, logprobs, sample, sampled, step};

const KIND: RunKind =
    RunKind::Lora(LoraConfig { rank: 4, seed: 7, train_attn: true, train_mlp: true, train_unembed: true });

/// Remembers what the engine tells.
#[derive(Default)]
struct Told {
    kept: Mutex<Vec<u64>>,
    marks: Mutex<Vec<Option<Fault>>>,
    /// Panics that are left for the ends of runs.
    panics: AtomicUsize,
}

impl Keeper for Told {
    fn settled(&self, _: &ModelId, _: u64) -> bool {
        true
    }

    fn sync(&self) -> tinderbox::error::Result<()> {
        Ok(())
    }

    fn kept(&self, _: &ModelId, next: u64) {
        self.kept.lock().unwrap().push(next);
    }

    fn gave_up(&self, _: &ModelId, _: u64, _: u64) {}

    fn ended(&self, _: &ModelId) {
        let left = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        assert!(left.is_err(), "a panic outside of anybody's request");
    }

    fn marked(&self, _: &ModelId, fault: Option<Fault>) {
        self.marks.lock().unwrap().push(fault);
    }
}

fn often() -> Limits {
    Limits { run_snapshot: Duration::ZERO, ..Limits::default() }
}

fn start(told: &Arc<Told>) -> Engine {
    Engine::kept_by(often(), told.clone(), || ())
}

/// Waits until the run's state on disk is the one before number `next`.
fn state(engine: &Engine, model: &str, next: u64) -> PathBuf {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match keep::newest(&engine.path("runs"), &id(model)) {
            (Some((n, path)), damaged) if n == next => {
                assert!(damaged.is_empty(), "{damaged:?}");
                return path;
            }
            (found, _) => assert!(Instant::now() < end, "no state before {next}: {found:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy_dir(&entry.path(), &target) } else { drop(std::fs::copy(entry.path(), target)) }
    }
}

#[test]
fn a_state_holds_weights_moments_and_pending_gradients_to_the_bit() {
    let engine = start(&Arc::default());
    engine.create("a", 4);
    engine.run("a", 1, fb(vec![datum(12, 1)]));
    engine.run("a", 2, step(0.02)).recv().unwrap().unwrap();
    // A gradient that no step has used yet.
    engine.run("a", 3, fb(vec![datum(30, 2)])).recv().unwrap().unwrap();
    let path = state(&engine, "a", 4);
    let revived = start(&Arc::default());
    let file = revived.path("a.state");
    std::fs::copy(path, &file).unwrap();
    let revive = RunCommand::Revive { base: BASE.into(), kind: KIND, state: file.clone() };
    // Requests come before the state is read.
    let again = revived.run("a", 4, step(0.02));
    drop(again);
    revived.run("a", 3, revive).recv().unwrap().unwrap();
    let rest = |engine: &Engine| {
        engine.run("a", 4, step(0.02)).recv().unwrap().unwrap();
        logprobs(engine.run("a", 5, fb(vec![datum(20, 3)])).recv().unwrap())
    };
    assert_eq!(rest(&engine), rest(&revived));
    let early = revived.run("a", 3, step(0.1)).recv().unwrap().unwrap_err();
    assert!(early.message.contains("seq_id 3"), "{early}");

    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&file, &bytes).unwrap();
    let revive = |state| RunCommand::Revive { base: BASE.into(), kind: KIND, state };
    let damaged = revived.run("b", 3, revive(file.clone())).recv().unwrap().unwrap_err();
    assert!(damaged.message.contains("a.state is damaged: its checksum"), "{damaged}");
    bytes.truncate(middle);
    std::fs::write(&file, &bytes).unwrap();
    let short = revived.run("b", 3, revive(file)).recv().unwrap().unwrap_err();
    assert!(short.message.contains("is damaged: its length"), "{short}");
}

#[test]
fn snapshots_are_there_again_and_the_state_after_a_load_needs_no_checkpoint() {
    let told = Arc::default();
    let engine = start(&told);
    engine.create("a", 4);
    let sampler = |n: u64| SamplerId(format!("s:sample:{n}"));
    let save = |save| engine.run("a", 3, RunCommand::Save(save)).recv().unwrap().unwrap();
    engine.run("a", 1, fb(vec![datum(12, 1)]));
    engine.run("a", 2, step(0.05)).recv().unwrap().unwrap();
    save(Save::Snapshot { sampler: sampler(0) });
    let inflight = RunCommand::Save(Save::Inflight { sampler: sampler(1) });
    engine.run("a", 4, inflight).recv().unwrap().unwrap();
    let dir = engine.path("saved");
    engine.run("a", 5, RunCommand::Save(Save::Training { dir: dir.clone() })).recv().unwrap().unwrap();
    engine.run("a", 6, RunCommand::Load(Restore { dir: dir.clone(), optimizer: true })).recv().unwrap().unwrap();
    assert!(told.kept.lock().unwrap().contains(&7), "a load is answered when the state after it is kept");
    std::fs::remove_dir_all(&dir).unwrap();
    state(&engine, "a", 7);
    let look = |engine: &Engine, n| {
        let request = sample(SampleSource::Snapshot(sampler(n)), 3, 2, 8);
        bits(&sampled(engine.sample("me", request).recv().unwrap()))
    };
    let before = [look(&engine, 0), look(&engine, 1)];
    let (snapshots, second) = (engine.path("snapshots"), tempfile::tempdir().unwrap());
    copy_dir(&snapshots, &second.path().join("snapshots"));
    let again = Engine::over(second.path(), often());
    assert_eq!([look(&again, 0), look(&again, 1)], before);
}

#[test]
fn a_silent_sessions_run_leaves_memory_and_wakes_to_the_bit() {
    let engine = start(&Arc::default());
    for model in ["a", "twin"] {
        engine.create(model, 4);
        engine.run(model, 1, fb(vec![datum(12, 1)]));
        engine.run(model, 2, step(0.02)).recv().unwrap().unwrap();
        engine.run(model, 3, fb(vec![datum(30, 2)])).recv().unwrap().unwrap();
    }
    // Number 4 never came, so 5 waits.
    let waiting = engine.run("a", 5, step(0.02));
    engine.handle.fell_silent(SessionId("s".into()), vec![id("a")]);
    assert!(waiting.recv().unwrap().unwrap_err().message.contains("silent"));
    state(&engine, "a", 6);
    let rest = |model: &str, next| {
        engine.run(model, next, step(0.02)).recv().unwrap().unwrap();
        logprobs(engine.run(model, next + 1, fb(vec![datum(20, 3)])).recv().unwrap())
    };
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(rest("a", 6), rest("twin", 4));
    // Asked while its state is being written it stays.
    engine.handle.fell_silent(SessionId("s".into()), vec![id("a")]);
    assert_eq!(rest("a", 8), rest("twin", 6));
    engine.handle.fell_silent(SessionId("s".into()), vec![id("a")]);
    engine.run("a", tinderbox::engine::handle::NOW, RunCommand::Unload).recv().unwrap().unwrap();
    assert!(!engine.path("runs").join(id("a").dir_name()).exists());
}

#[test]
fn samples_wait_for_a_snapshot_that_is_announced() {
    let engine = start(&Arc::default());
    engine.create("a", 4);
    let sampler = SamplerId("s:sample:0".into());
    engine.handle.expect(vec![sampler.clone()]);
    let early = engine.sample("me", sample(SampleSource::Snapshot(sampler.clone()), 3, 1, 4));
    engine.run("a", 1, RunCommand::Save(Save::Snapshot { sampler })).recv().unwrap().unwrap();
    sampled(early.recv().unwrap());
}

#[test]
fn the_step_after_a_request_that_was_not_finite_is_refused_and_a_run_can_go_back() {
    let told: Arc<Told> = Arc::default();
    let engine = start(&told);
    engine.create("a", 4);
    engine.create("twin", 4);
    let probe = |model: &str, seq| logprobs(engine.run(model, seq, fb(vec![datum(20, 3)])).recv().unwrap());
    for model in ["a", "twin"] {
        engine.run(model, 1, fb(vec![datum(12, 1)]));
        engine.run(model, 2, step(0.02)).recv().unwrap().unwrap();
    }
    state(&engine, "a", 3);
    let mut wild = datum(12, 2);
    wild.inputs.weights = Some(vec![3e38; 12]);
    let good = datum(9, 5);
    let e = engine.run("a", 3, fb(vec![good.clone(), wild, good])).recv().unwrap().unwrap_err();
    assert!(e.message.starts_with("datum 1: ") && e.message.contains("tinderbox rollback s:train:a"), "{e}");
    let refused = engine.run("a", 4, step(0.02)).recv().unwrap().unwrap_err();
    assert!(refused.message.contains("seq_id 3") && refused.message.contains("datum 1"), "{refused}");
    let marks = told.marks.lock().unwrap().clone();
    let [Some(Fault { seq_id: 3, datum: 1, .. })] = &marks[..] else { panic!("{marks:?}") };
    // Nothing of it is left, and a step that succeeds takes the mark away.
    assert_eq!(probe("a", 5), probe("twin", 3));
    engine.run("a", 6, step(1e38)).recv().unwrap().unwrap();
    engine.run("twin", 4, step(0.0)).recv().unwrap().unwrap();
    assert_eq!(told.marks.lock().unwrap().last(), Some(&None));
    let diverged = engine.run("a", 7, fb(vec![datum(12, 1)])).recv().unwrap().unwrap_err();
    assert!(diverged.message.contains("diverged"), "{diverged}");
    let back = engine.run("a", tinderbox::engine::handle::NOW, RunCommand::RollBack).recv().unwrap().unwrap();
    assert!(matches!(back, Outcome::RolledBack { next } if (3..=6).contains(&next)), "{back:?}");
    assert_eq!(probe("a", 8), probe("twin", 5));
    assert!(told.kept.lock().unwrap().contains(&8), "it stays there after a restart");
}

#[test]
fn a_panic_outside_of_requests_is_survived_but_not_three_in_a_row() {
    let told: Arc<Told> = Arc::default();
    let (tx, broken) = channel();
    let engine = Engine::kept_by(often(), told.clone(), move || tx.send(()).unwrap());
    let unload = |model: &str| {
        engine.create(model, 2);
        // Its answer goes down with the panic.
        assert!(engine.run(model, tinderbox::engine::handle::NOW, RunCommand::Unload).recv().is_err());
    };
    for n in 0..2 {
        told.panics.store(1, Ordering::SeqCst);
        unload(&format!("a{n}"));
        engine.create(&format!("b{n}"), 2);
        engine.run(&format!("b{n}"), 1, fb(vec![datum(5, 1)])).recv().unwrap().unwrap();
    }
    assert!(broken.try_recv().is_err());
    for n in 0..3 {
        engine.create(&format!("c{n}"), 2);
    }
    told.panics.store(3, Ordering::SeqCst);
    for n in 0..3 {
        let unload = RunCommand::Unload;
        let _ = engine.run(&format!("c{n}"), tinderbox::engine::handle::NOW, unload).recv();
    }
    broken.recv_timeout(Duration::from_secs(20)).unwrap();
}
