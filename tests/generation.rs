//! Generations that are followed token by token, and that move to newer weights on the way.

use std::sync::mpsc::channel;

use tinderbox::command::{
    Command, Origin, Outcome, RunCommand, SampleOutput, SampleRequest, SampleSource, Save, TokenEvent,
};
use tinderbox::config::limits::Limits;
use tinderbox::ids::{OwnerId, RequestId, SamplerId, SessionId};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::engine::{Engine, bits, datum, fb, sample, sampled, step};

/// A sample whose tokens are told.
fn followed(
    engine: &Engine,
    request: SampleRequest,
) -> (UnboundedReceiver<TokenEvent>, std::sync::mpsc::Receiver<tinderbox::error::Result<Outcome>>) {
    let (tx, rx) = channel();
    let (events, told) = unbounded_channel();
    let origin = Origin { owner: OwnerId("me".into()), session: SessionId("s".into()), promise: RequestId::random() };
    let reply = Box::new(move |result| tx.send(result).unwrap_or(()));
    engine.handle.stream(Command::Sample { origin, request }, reply, events);
    (told, rx)
}

#[test]
fn what_is_told_token_by_token_is_the_outcome() {
    let engine = Engine::start(Limits { decode_sequences: 3, ..Limits::default() });
    let request = SampleRequest { topk_sample_logprobs: 2, ..sample(SampleSource::Base, 3, 7, 23) };
    let (mut told, outcome) = followed(&engine, request);
    let output = sampled(outcome.recv().unwrap());
    let mut events = Vec::new();
    while let Some(event) = told.blocking_recv() {
        events.push(event);
    }
    assert_eq!(events.len(), 7 * 23);
    for (i, sequence) in output.sequences.iter().enumerate() {
        let mine: Vec<&TokenEvent> = events.iter().filter(|e| e.sample == i).collect();
        let told = |f: fn(&TokenEvent) -> u32| mine.iter().map(|e| f(e)).collect::<Vec<u32>>();
        assert_eq!(told(|e| e.token), sequence.tokens);
        assert_eq!(told(|e| e.logprob.to_bits()), sequence.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        assert_eq!(mine.iter().filter_map(|e| e.topk.clone()).collect::<Vec<_>>(), *sequence.topk.as_ref().unwrap());
        let (last, before) = mine.split_last().unwrap();
        assert_eq!(last.stop_reason, Some(sequence.stop_reason));
        assert!(before.iter().all(|e| e.stop_reason.is_none()));
    }
}

/// A step of the run "a" and a save behind it: → the sampler, and the save's number.
struct Trainer<'a> {
    engine: &'a Engine,
    seq: u64,
}

impl Trainer<'_> {
    fn step_and(&mut self, save: impl Fn(SamplerId) -> Save) -> (SamplerId, u64) {
        self.engine.run("a", self.seq, fb(vec![datum(12, 1)]));
        self.engine.run("a", self.seq + 1, step(0.1));
        self.seq += 2;
        self.save(save)
    }

    fn save(&mut self, save: impl Fn(SamplerId) -> Save) -> (SamplerId, u64) {
        let (seq, sampler) = (self.seq, SamplerId(format!("s:sample:{}", self.seq)));
        self.seq += 1;
        self.engine.run("a", seq, RunCommand::Save(save(sampler.clone()))).recv().unwrap().unwrap();
        (sampler, seq)
    }
}

fn snapshot(sampler: SamplerId) -> Save {
    Save::Snapshot { sampler }
}

fn inflight(sampler: SamplerId) -> Save {
    Save::Inflight { sampler }
}

/// The versions in order, each once; they never fall.
fn versions(output: &SampleOutput) -> Vec<u64> {
    let sequence = &output.sequences[0];
    assert_eq!(sequence.weight_versions.len(), sequence.tokens.len());
    assert!(sequence.weight_versions.is_sorted(), "{:?}", sequence.weight_versions);
    let mut seen = sequence.weight_versions.clone();
    seen.dedup();
    seen
}

#[test]
fn a_generation_spans_updates_and_snapshots_stay() {
    let engine = Engine::start(Limits::default());
    engine.create("a", 4);
    let mut trainer = Trainer { engine: &engine, seq: 1 };
    let (fixed, fixed_version) = trainer.step_and(snapshot);
    let look = |s: &SamplerId, tokens| {
        sampled(engine.sample("me", sample(SampleSource::Snapshot(s.clone()), 3, 1, tokens)).recv().unwrap())
    };
    let before = look(&fixed, 30);
    assert_eq!(versions(&before), [fixed_version]);

    let (first, v1) = trainer.step_and(inflight);
    let request = sample(SampleSource::Snapshot(first.clone()), 3, 1, 480);
    let (mut told, outcome) = followed(&engine, request);
    let (snap, snap_outcome) = followed(&engine, sample(SampleSource::Snapshot(fixed.clone()), 3, 1, 480));
    let mut follow = |n| (0..n).for_each(|_| drop(told.blocking_recv().unwrap()));
    follow(40);
    let (second, v2) = trainer.step_and(inflight);
    follow(40);
    let (_, v3) = trainer.step_and(inflight);
    let output = sampled(outcome.recv().unwrap());
    assert_eq!(versions(&output), [v1, v2, v3]);
    drop(snap);
    assert_eq!(versions(&sampled(snap_outcome.recv().unwrap())), [fixed_version]);

    // All in-flight samplers read the newest weights, whichever save they came from.
    assert_eq!(versions(&look(&first, 5)), [v3]);
    assert_eq!(bits(&look(&first, 30)), bits(&look(&second, 30)));
    assert_eq!(bits(&look(&fixed, 30)), bits(&before), "the snapshot");
    let (same, _) = trainer.save(snapshot);
    assert_eq!(bits(&look(&same, 30)), bits(&look(&first, 30)), "the newest weights");
}

#[test]
fn in_flight_samplers_end_with_their_session() {
    let engine = Engine::start(Limits::default());
    engine.create("a", 4);
    let (sampler, _) = Trainer { engine: &engine, seq: 1 }.step_and(inflight);
    engine.handle.end_session(SessionId("s".into()));
    let gone = engine.sample("me", sample(SampleSource::Snapshot(sampler), 3, 1, 5)).recv().unwrap().unwrap_err();
    assert!(gone.message.contains("gone"), "{gone}");
}
