//! For tests: promises around an engine that answers when told to.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tempfile::TempDir;

use crate::accounts::Accounts;
use crate::command::{AdamParams, Command, Outcome, RunCommand};
use crate::engine::handle::{Handle, Message};
use crate::engine::meter::Meter;
use crate::error::Result;
use crate::ids::{ModelId, OwnerId, RequestId};
use crate::store::Store;
use crate::store::testing::empty_store;

use super::admission::Room;
use super::complete::Completion;
use super::issue::{Key, Request};
use super::ledger::Ledger;
use super::{Futures, Retention};

/// How long files outlive their row in the rig.
const FILES: Duration = Duration::from_millis(200);

pub struct Rig {
    pub futures: Futures,
    pub store: Store,
    pub dir: TempDir,
    /// Where the engine would add its time.
    pub meter: Meter,
    inbox: std::sync::Mutex<Receiver<Message>>,
    /// Submissions taken from the inbox but not answered, oldest first.
    waiting: std::sync::Mutex<Vec<Message>>,
}

impl Rig {
    /// With room for one request that asks for a permit.
    pub async fn new() -> Self {
        let (tx, rx) = channel();
        let store = empty_store().await;
        let retention = Retention { time: Duration::from_secs(3600), bytes: 1 << 20, files: FILES };
        let room = Room { bytes: 1 << 20, requests: 1 };
        let dir = tempfile::tempdir().unwrap();
        let accounts = Accounts::default();
        let meter = Meter::default();
        let engine = Handle::new(tx, vec![]).metered(meter.clone());
        let ledger = Ledger::for_testing(dir.path());
        let futures = Futures::new(engine, store.clone(), retention, room, accounts, dir.path().into(), ledger);
        Self { futures, store, dir, meter, inbox: rx.into(), waiting: Vec::new().into() }
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
        self.told(|message| match message {
            Message::Skip { model, seq } => Ok((model, seq)),
            other => Err(other),
        })
    }

    /// Samples the engine was told to drop since the last look.
    pub fn cancelled(&self) -> Vec<RequestId> {
        self.told(|message| match message {
            Message::Cancel(id) => Ok(id),
            other => Err(other),
        })
    }

    fn told<T>(&self, wanted: impl Fn(Message) -> std::result::Result<T, Message>) -> Vec<T> {
        let mut waiting = self.waiting.lock().unwrap();
        let mut told = Vec::new();
        for message in self.inbox.lock().unwrap().try_iter() {
            match wanted(message) {
                Ok(item) => told.push(item),
                Err(other) => waiting.push(other),
            }
        }
        told
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
    let command = RunCommand::OptimStep(AdamParams::default());
    let command = Command::Run { owner: owner(), model: run(), seq, command };
    Request {
        id: RequestId::random(),
        owner: owner(),
        key: Key::Run { model: run(), seq },
        meaning,
        command,
        completion: Completion::OptimStep,
        permit: None,
    }
}
