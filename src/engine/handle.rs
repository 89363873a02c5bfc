//! The engine's door: submit commands from any thread, get each outcome through its reply.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use crate::command::{Command, Fault, Outcome, RunKind, TokenEvent};
use crate::engine::load::{Board, Done, Load};
use crate::engine::meter::{Consumer, Meter, Spent};
use crate::error::{Error, Result};
use crate::ids::{ModelId, OwnerId, RequestId, SamplerId, SessionId};

/// A number that means "at once, whatever waits": how the end of a session unloads its runs.
pub const NOW: u64 = u64::MAX;

/// Called exactly once, on the engine's thread (or a writer thread for saves); must not block.
pub type Reply = Box<dyn FnOnce(Result<Outcome>) + Send>;

/// Where a sample's tokens are told while it runs; the outcome follows all the same. A receiver that is gone is ignored.
pub type Events = tokio::sync::mpsc::UnboundedSender<TokenEvent>;

/// Who remembers what was asked of runs, and is told what of it no longer needs to be: it is in a state file.
pub trait Keeper: Send + std::marker::Sync {
    /// Whether everything that this run was asked below number `next` has been answered, and its answer kept. Only then
    /// may a state that holds it take the place of the requests.
    fn settled(&self, model: &ModelId, next: u64) -> bool;
    /// Waits until what was answered so far survives a power cut: a state on disk must never know more than that.
    fn sync(&self) -> Result<()>;
    /// The run as it was before number `next` is on disk.
    fn kept(&self, model: &ModelId, next: u64);
    /// The run went on without the numbers from `from` up to `next`, which never came.
    fn gave_up(&self, model: &ModelId, from: u64, next: u64);
    /// The run is gone for good.
    fn ended(&self, model: &ModelId);
    /// The run's numbers are not finite, or are again.
    fn marked(&self, model: &ModelId, fault: Option<Fault>);
}

/// Remembers nothing: for tests of the engine alone, whose runs end with it.
pub struct NoKeeper;

impl Keeper for NoKeeper {
    fn settled(&self, _: &ModelId, _: u64) -> bool {
        true
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn kept(&self, _: &ModelId, _: u64) {}

    fn gave_up(&self, _: &ModelId, _: u64, _: u64) {}

    fn ended(&self, _: &ModelId) {}

    fn marked(&self, _: &ModelId, _: Option<Fault>) {}
}

/// Called when the engine has stopped.
pub type Stopped = Box<dyn FnOnce() + Send>;

/// A command on its way to the engine.
pub struct Submission {
    pub command: Command,
    /// Counts submissions: by it a sample is found in [`Load`].
    pub ticket: u64,
    pub reply: Reply,
    /// Only samples have any.
    pub events: Option<Events>,
}

/// A run whose state is on disk alone.
#[derive(Clone, Debug)]
pub struct Asleep {
    pub model: ModelId,
    pub owner: OwnerId,
    /// Served name of its base model.
    pub base: String,
    pub kind: RunKind,
    /// The number of the request that comes next.
    pub next: u64,
    pub state: PathBuf,
}

/// What arrives at the engine's thread.
pub enum Message {
    Submit(Box<Submission>),
    /// This number of this run was refused at the door and will never come: do not wait for it.
    Skip {
        model: ModelId,
        seq: u64,
    },
    /// Drop this sample request; its reply gets an error.
    Cancel(RequestId),
    /// Drop the session's sample requests and its samplers' snapshots. Its runs are unloaded one by one.
    EndSession(SessionId),
    /// Nobody asks anything of this session: its samples are dropped, these runs of it leave memory.
    FellSilent(SessionId, Vec<ModelId>),
    /// A run of an earlier process that stays asleep until it is asked something.
    Asleep(Box<Asleep>),
    /// Snapshots that commands on their way will make again: samples from them wait until then.
    Expect(Vec<SamplerId>),
    /// Weights of the owners' shares; who is not named has 1.
    Weights(HashMap<OwnerId, f64>),
    /// Finish what runs, write what is being saved, fail what waits, end the thread.
    Shutdown(Stopped),
}

/// What clients may know about a served base model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Served name, without the `:full` suffix.
    pub name: String,
    /// The model's directory on this machine: also where its tokenizer lives.
    pub dir: PathBuf,
    /// `model_type` of config.json: llama, qwen2, qwen3.
    pub arch: String,
    pub vocab_size: usize,
    pub max_context_length: usize,
    pub eos_ids: Vec<u32>,
}

/// Cheap to clone; all clones speak to one engine.
#[derive(Clone)]
pub struct Handle {
    tx: Sender<Message>,
    models: Arc<Vec<ModelInfo>>,
    tickets: Arc<AtomicU64>,
    board: Board,
    meter: Meter,
}

impl Handle {
    pub fn new(tx: Sender<Message>, models: Vec<ModelInfo>) -> Self {
        Self { tx, models: Arc::new(models), tickets: Arc::default(), board: Board::default(), meter: Meter::default() }
    }

    /// Where the engine's thread leaves its picture of the queues.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// What waited and ran a moment ago, by owner and by run, and why.
    pub fn load(&self) -> Arc<Load> {
        self.board.current()
    }

    /// Pieces of work begun so far.
    pub fn done(&self) -> Done {
        self.board.counters.read()
    }

    /// Replaces the weights of the owners' shares of the device; who is not named has 1.
    pub fn set_weights(&self, weights: HashMap<OwnerId, f64>) {
        let _ = self.tx.send(Message::Weights(weights));
    }

    /// Reads the device time that an engine adds to `meter`.
    pub fn metered(self, meter: Meter) -> Self {
        Self { meter, ..self }
    }

    /// What was done for this consumer since the last call, of `trained` tokens at most. All of a request's is there when
    /// its outcome is.
    pub fn take_spent(&self, consumer: &Consumer, trained: u64) -> Spent {
        self.meter.take(consumer, trained)
    }

    /// The served base models, in the order of the command line.
    pub fn models(&self) -> &[ModelInfo] {
        &self.models
    }

    pub fn model(&self, name: &str) -> Option<&ModelInfo> {
        self.models.iter().find(|m| m.name == name)
    }

    /// Never blocks. When the engine is gone the reply is called at once with a server error. → the request's ticket, by
    /// which [`Load::of_sample`] finds it.
    pub fn submit(&self, command: Command, reply: Reply) -> u64 {
        self.send(command, reply, None)
    }

    /// As [`Self::submit`], and each token of a sample is told as it is drawn.
    pub fn stream(&self, command: Command, reply: Reply, events: Events) -> u64 {
        self.send(command, reply, Some(events))
    }

    fn send(&self, command: Command, reply: Reply, events: Option<Events>) -> u64 {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let submission = Submission { command, ticket, reply, events };
        if let Err(e) = self.tx.send(Message::Submit(Box::new(submission)))
            && let Message::Submit(s) = e.0
        {
            (s.reply)(Err(Error::server("the engine has stopped")));
        }
        ticket
    }

    /// The session shows no sign of life: its samples are dropped, and its runs leave memory until they are asked something.
    pub fn fell_silent(&self, session: SessionId, runs: Vec<ModelId>) {
        let _ = self.tx.send(Message::FellSilent(session, runs));
    }

    /// A run of an earlier process, that is not needed now.
    pub fn leave_asleep(&self, run: Asleep) {
        let _ = self.tx.send(Message::Asleep(Box::new(run)));
    }

    /// Samples from these snapshots wait until commands that are yet to be submitted have made them again.
    pub fn expect(&self, snapshots: Vec<SamplerId>) {
        let _ = self.tx.send(Message::Expect(snapshots));
    }

    pub fn skip(&self, model: ModelId, seq: u64) {
        let _ = self.tx.send(Message::Skip { model, seq });
    }

    /// Frees what an abandoned sample holds. Harmless when it has ended.
    pub fn cancel(&self, promise: RequestId) {
        let _ = self.tx.send(Message::Cancel(promise));
    }

    pub fn end_session(&self, session: SessionId) {
        let _ = self.tx.send(Message::EndSession(session));
    }

    /// `stopped` is called when everything has ended, or at once when the engine is gone already.
    pub fn shutdown(&self, stopped: Stopped) {
        if let Err(e) = self.tx.send(Message::Shutdown(stopped))
            && let Message::Shutdown(stopped) = e.0
        {
            stopped();
        }
    }
}
