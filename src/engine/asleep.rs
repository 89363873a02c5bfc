//! Runs that nobody asks anything for a while leave memory: their state is on disk, and the next request wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::command::{RunCommand, RunKind};
use crate::engine::handle::Asleep;
use crate::engine::inbox::Inbox;
use crate::engine::models::{Models, Trained};
use crate::engine::run::Engine;
use crate::error::{Error, Result};
use crate::ids::ModelId;
use crate::scheduler::Queued;

/// A run whose state is being written, after which it leaves memory.
pub struct Drowsy {
    asleep: Asleep,
    /// The state is in its place.
    written: Arc<AtomicBool>,
}

impl Engine {
    /// Cancels what waits of these runs, and writes their states.
    pub(super) fn put_to_sleep(&mut self) {
        for model in std::mem::take(&mut self.inbox.sleepy) {
            let Some(run) = self.models.run(&model) else { continue };
            let kind = match &run.trained {
                Trained::Lora(a) => RunKind::Lora(a.config),
                Trained::Full(_) => RunKind::Full,
            };
            let base = run.base_name.clone();
            let Some(owner) = self.inbox.scheduler.owner(&model).cloned() else { continue };
            let next =
                self.inbox.cancel_run(&model, &Error::user("its session fell silent; what waited was cancelled"));
            let path = self.keeping.path(&model, next);
            let asleep = Asleep { model: model.clone(), owner, base, kind, next, state: path };
            let written = Arc::new(AtomicBool::new(false));
            let done = written.clone();
            let then = Box::new(move |kept: &Result<()>| done.store(kept.is_ok(), Ordering::Release));
            self.keeping.begin(&model, &self.models, (next, next), Some(then));
            self.inbox.drowsy.insert(model, Drowsy { asleep, written });
        }
        let inbox = &mut self.inbox;
        for (model, drowsy) in inbox.drowsy.extract_if(|_, d| d.written.load(Ordering::Acquire)) {
            tracing::info!(run = %model, "nobody asks for it: its state is on disk alone");
            self.models.unload(&model);
            inbox.scheduler.close(&model);
            self.keeping.forget(&model);
            inbox.asleep.insert(model, drowsy.asleep);
        }
    }
}

impl Inbox {
    /// Something is asked of a run: if it is asleep its state is read before anything else.
    pub fn wake(&mut self, model: &ModelId, models: &Models) -> Result<()> {
        self.sleepy.retain(|m| m != model);
        self.drowsy.remove(model);
        let Some(Asleep { owner, base, kind, next, state, .. }) = self.asleep.remove(model) else { return Ok(()) };
        let plan = models.plan(&base, kind)?;
        self.plans.insert(model.clone(), plan);
        let last = next - 1;
        self.scheduler.open(model.clone(), owner, last);
        self.scheduler.push(model, last, Queued::Barrier);
        let name = model.clone();
        let told = move |outcome: Result<_>| {
            if let Err(e) = outcome {
                tracing::error!(run = %name, error = %e, "the run does not wake");
            }
        };
        self.barriers.insert((model.clone(), last), (RunCommand::Revive { base, kind, state }, Box::new(told)));
        Ok(())
    }

    /// Fails what waits of a run. → the number that comes next.
    fn cancel_run(&mut self, model: &ModelId, error: &Error) -> u64 {
        let next = self.scheduler.next_of(model).unwrap_or_default();
        let waiting = self.scheduler.cancel(model);
        for seq in &waiting {
            let key = (model.clone(), *seq);
            if let Some(r) = self.requests.remove(&key) {
                (r.reply)(Err(error.clone()));
            }
            if let Some((_, reply)) = self.barriers.remove(&key) {
                reply(Err(error.clone()));
            }
        }
        waiting.into_iter().max().map_or(next, |last| last + 1)
    }
}
