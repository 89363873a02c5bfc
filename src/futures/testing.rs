//! For tests: promises around an engine that answers when told to.

use std::sync::mpsc::{Receiver, channel};

use tempfile::TempDir;

use crate::command::{AdamParams, Command, Outcome, RunCommand};
use crate::engine::handle::{Handle, Message};
use crate::error::Result;
use crate::ids::{ModelId, OwnerId};
use crate::store::Store;

use super::complete::Completion;
use super::issue::{Key, Request};
use super::{Futures, Retention};

pub struct Rig {
    pub futures: Futures,
    pub store: Store,
    pub dir: TempDir,
    inbox: std::sync::Mutex<Receiver<Message>>,
    /// Submissions taken from the inbox but not answered, oldest first.
    waiting: std::sync::Mutex<Vec<Message>>,
}

impl Rig {
    pub async fn new() -> Self {
        Self::keeping(1 << 20).await
    }

    /// With this many bytes for results.
    pub async fn keeping(bytes: usize) -> Self {
        let (tx, rx) = channel();
        let store = Store::open("sqlite::memory:").await.unwrap();
        let retention = Retention { time: std::time::Duration::from_secs(3600), bytes };
        let futures = Futures::new(Handle::new(tx, vec![]), store.clone(), retention);
        let dir = tempfile::tempdir().unwrap();
        Self { futures, store, dir, inbox: rx.into(), waiting: Vec::new().into() }
    }

    /// Reply to the oldest submission, on a thread as the engine does.
    pub fn answer(&self, outcome: Result<Outcome>) {
        self.submitted();
        let Message::Submit(s) = self.waiting.lock().unwrap().remove(0) else { panic!("not a submission") };
        std::thread::spawn(move || (s.reply)(outcome)).join().unwrap();
    }

    /// What a panic in the engine does to the oldest submission.
    pub fn drop_reply(&self) {
        self.submitted();
        drop(self.waiting.lock().unwrap().remove(0));
    }

    /// Submissions that wait for an answer.
    pub fn submitted(&self) -> usize {
        let mut waiting = self.waiting.lock().unwrap();
        waiting.extend(self.inbox.lock().unwrap().try_iter().filter(|m| matches!(m, Message::Submit(_))));
        waiting.len()
    }

    /// Numbers the engine was told to skip since the last look.
    pub fn skipped(&self) -> Vec<(ModelId, u64)> {
        let mut waiting = self.waiting.lock().unwrap();
        let mut skipped = Vec::new();
        for message in self.inbox.lock().unwrap().try_iter() {
            match message {
                Message::Skip { model, seq } => skipped.push((model, seq)),
                other => waiting.push(other),
            }
        }
        skipped
    }
}

pub fn owner() -> OwnerId {
    OwnerId("me".into())
}

pub fn run() -> ModelId {
    ModelId("s:train:0".into())
}

/// An optim_step of this number and meaning.
pub fn step(seq: u64, meaning: u64) -> Request {
    let command = Command::Run { model: run(), seq, command: RunCommand::OptimStep(AdamParams::default()) };
    Request { owner: owner(), key: Key::Run { model: run(), seq }, meaning, command, completion: Completion::OptimStep }
}
