//! The device is shared: a flood of one owner costs another one piece of work, shares follow weights, waits say why.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tinderbox::command::{Command, Origin, RunCommand, SampleRequest, SampleSource, Save};
use tinderbox::config::limits::Limits;
use tinderbox::engine::handle::Handle;
use tinderbox::engine::load::{Done, Wait};
use tinderbox::ids::{OwnerId, RequestId, SessionId};

use crate::engine::{Engine, datum, fb, id, sample, step};

/// Far more than can be done while the test runs.
const FLOOD: u64 = 10_000;

fn owner(name: &str) -> OwnerId {
    OwnerId(name.into())
}

/// A one-token sample of an owner who has nothing else.
fn single() -> Command {
    sample_of("single", SampleRequest { prompt_logprobs: false, ..sample(SampleSource::Base, 2, 1, 1) })
}

fn sample_of(name: &str, request: SampleRequest) -> Command {
    let session = SessionId(format!("session of {name}"));
    Command::Sample { origin: Origin { owner: owner(name), session, promise: RequestId::random() }, request }
}

/// Pieces of work that a command takes to be answered, its own among them, when it is submitted at the moment a piece
/// of the flood has just been done.
struct Probe {
    tx: std::sync::mpsc::Sender<Done>,
    command: Command,
    handle: Handle,
}

impl Probe {
    fn new(engine: &Engine, command: Command) -> (Self, Receiver<Done>) {
        let (tx, rx) = channel();
        (Self { tx, command, handle: engine.handle.clone() }, rx)
    }

    /// To be called on the engine's thread.
    fn fire(self) {
        let Self { tx, command, handle } = self;
        let (before, counting) = (handle.done(), handle.clone());
        let told = move |result: tinderbox::error::Result<_>| {
            if result.is_err() {
                return;
            }
            let after = counting.done();
            let taken = Done {
                passes: after.passes - before.passes,
                barriers: after.barriers - before.barriers,
                decode_steps: after.decode_steps - before.decode_steps,
                prompt_pieces: after.prompt_pieces - before.prompt_pieces,
            };
            tx.send(taken).unwrap_or(());
        };
        handle.submit(command, Box::new(told));
    }
}

/// Submits the flood; when its request number `after` is answered the first of `commands`, some later the next: → what was
/// done until each was answered.
fn during<const N: usize>(
    engine: &Engine,
    flood: impl Iterator<Item = Command>,
    after: usize,
    commands: [Command; N],
) -> [Done; N] {
    let (probes, taken): (Vec<_>, Vec<_>) = commands.map(|c| Probe::new(engine, c)).into_iter().unzip();
    let mut probes = probes.into_iter();
    for (i, one) in flood.enumerate() {
        let probe = if i >= after && (i - after).is_multiple_of(20) { probes.next() } else { None };
        engine.handle.submit(one, Box::new(move |_| probe.into_iter().for_each(Probe::fire)));
    }
    let taken = taken.into_iter().map(|t| t.recv_timeout(Duration::from_secs(120)).unwrap());
    taken.collect::<Vec<_>>().try_into().unwrap()
}

fn train(name: &'static str, seq: u64, tokens: u32) -> Command {
    Command::Run { owner: owner(name), model: id(name), seq, command: fb(vec![datum(tokens, seq as u32)]) }
}

fn creation(engine: &Engine, name: &str) {
    engine.create_for(name, name, 4);
}

#[test]
fn a_flood_of_samples_costs_another_owner_one_step() {
    let engine = Engine::start(Limits::default());
    creation(&engine, "single");
    let flood = (0..FLOOD).map(|i| sample_of("flood", sample(SampleSource::Base, i, 2, 8)));
    let [sample, train] = during(&engine, flood, 20, [single(), train("single", 1, 20)]);
    // Its own piece of prompt, and perhaps the step in which the flood's request was answered.
    assert!(sample.prompt_pieces + sample.decode_steps <= 2, "{sample:?}");
    // Its own pass, which shares the device with those who sample: a step or two between its six pieces.
    assert!(train.passes == 1 && train.prompt_pieces + train.decode_steps <= 12, "{train:?}");
}

#[test]
fn a_flood_of_training_costs_another_owner_one_pass() {
    let engine = Engine::start(Limits { pass_tokens: 64, ..Limits::default() });
    creation(&engine, "flood");
    creation(&engine, "single");
    let flood = (1..=FLOOD).map(|seq| train("flood", seq, 40));
    let [train, sample] = during(&engine, flood, 20, [train("single", 1, 20), single()]);
    assert!(train.passes <= 2 && train.prompt_pieces == 0, "{train:?}");
    assert!(sample.passes <= 1 && sample.prompt_pieces + sample.decode_steps <= 1, "{sample:?}");
}

#[test]
fn a_flood_of_prompts_with_questions_costs_another_owner_one_piece() {
    let engine = Engine::start(Limits::default());
    let heavy = |i: u64| SampleRequest {
        prompt: (0..500).map(|t| (t * 3 + i as u32) % 64).collect(),
        topk_prompt_logprobs: 60,
        prompt_alt_tokens_k: 60,
        ..sample(SampleSource::Base, i, 16, 8)
    };
    let [taken] = during(&engine, (0..300).map(|i| sample_of("flood", heavy(i))), 1, [single()]);
    assert!(taken.prompt_pieces + taken.decode_steps <= 2, "{taken:?}");
}

#[test]
fn a_flood_of_saves_and_steps_costs_another_owner_one_of_them() {
    let engine = Engine::start(Limits::default());
    creation(&engine, "flood");
    let dir = |i: u64| engine.path(&format!("save-{i}"));
    let command = |seq: u64| match seq % 3 {
        0 => RunCommand::Save(Save::Training { dir: dir(seq) }),
        1 => step(1e-3),
        _ => fb(vec![datum(9, 1)]),
    };
    let flood =
        (1..=600).map(|seq| Command::Run { owner: owner("flood"), model: id("flood"), seq, command: command(seq) });
    let [taken] = during(&engine, flood, 9, [single()]);
    assert!(taken.passes + taken.barriers <= 1 && taken.prompt_pieces <= 1, "{taken:?}");
}

#[test]
fn device_time_follows_the_weights() {
    let engine = Engine::start(Limits { pass_tokens: 64, ..Limits::default() });
    engine.handle.set_weights(HashMap::from([(owner("heavy"), 3.0)]));
    for name in ["heavy", "light"] {
        creation(&engine, name);
    }
    let (tx, done) = channel();
    for seq in 1..=400 {
        for name in ["heavy", "light"] {
            let tx = tx.clone();
            engine.handle.submit(train(name, seq, 40), Box::new(move |_| tx.send(name).unwrap_or(())));
        }
    }
    let first: Vec<&str> = (0..240).map(|_| done.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    let heavy = first[40..].iter().filter(|name| **name == "heavy").count();
    assert!((120..=180).contains(&heavy), "{heavy} of 200 passes were the heavier owner's; 150 are its share");
}

/// Looks until the wait is such as `wanted`.
fn wait_for(what: &str, look: impl Fn() -> Option<Wait>, wanted: impl Fn(Wait) -> bool) {
    let start = Instant::now();
    loop {
        let seen = look();
        if seen.is_some_and(&wanted) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: last seen {seen:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_waits_says_for_what() {
    // Room for one sequence of 500 tokens: 2 layers x 2 x 32 values x 4 bytes a token.
    let engine = Engine::start(Limits { kv_cache_bytes: Some(500 * 512), ..Limits::default() });
    creation(&engine, "me");
    let me = owner("me");
    engine.handle.submit(train("me", 7, 9), Box::new(|_| ()));
    let load = || engine.handle.load();
    wait_for("a gap", || load().of_run(&me, &id("me"), 7), |w| w == Wait::Number(1));
    assert_eq!(load().owners[&me].training, 1);
    let long = || sample_of("me", sample(SampleSource::Base, 1, 1, 480));
    let tickets: Vec<u64> = (0..300).map(|_| engine.handle.submit(long(), Box::new(|_| ()))).collect();
    let last = tickets[299];
    wait_for(
        "memory",
        || load().of_sample(&me, last),
        |w| w.is_for_capacity() && w.to_string().starts_with("waits for key/value memory, "),
    );
    assert!(load().owners[&me].samples.len() > 200);
}

#[test]
fn what_waits_for_its_turn_says_its_place() {
    let engine = Engine::start(Limits { pass_tokens: 64, ..Limits::default() });
    creation(&engine, "me");
    creation(&engine, "other");
    for seq in 1..=2000 {
        engine.handle.submit(train("me", seq, 40), Box::new(|_| ()));
        engine.handle.submit(train("other", seq, 40), Box::new(|_| ()));
    }
    let look = |name: &str| engine.handle.load().of_run(&owner(name), &id(name), 2000);
    let place = |w, before| matches!(w, Wait::Turn { mine, owners } if mine > 100 && owners == before);
    wait_for("behind the other", || look("me").filter(|w| place(*w, 1)).or_else(|| look("other")), |w| place(w, 1));
    let load = engine.handle.load();
    assert!(load.owners.values().all(|o| o.weight == 1.0 && o.training > 0));
}
