//! What of the runs lasts: states written when due, ways back to them, marks, and files that go with their run.

use crate::command::Outcome;
use crate::engine::keep;
use crate::engine::run::Engine;
use crate::error::Result;
use crate::ids::ModelId;

impl Engine {
    /// Writes the state of the run that is due, if any is.
    pub(super) fn keep_due(&mut self, idle: bool) {
        if let Some(model) = self.keeping.due(idle) {
            self.keep(&model);
        }
        // Nobody may want them any more: their session ended while they were written.
        for origin in self.keeping.take_saved() {
            self.models.remove_unless_wanted(&origin);
        }
    }

    pub(super) fn keep(&mut self, model: &ModelId) {
        match self.inbox.scheduler.next_of(model) {
            Some(next) => self.keeping.begin(model, &self.models, (next, next), None),
            None => self.keeping.forget(model),
        }
    }

    /// Writes the run's state now, whatever has to be written before.
    pub(super) fn keep_all(&mut self, model: &ModelId) {
        if let Some(next) = self.inbox.scheduler.next_of(model) {
            self.keeping.begin(model, &self.models, (next, next), Some(Box::new(|_: &Result<()>| ())));
        }
    }

    /// Runs go back to their last state on disk.
    pub(super) fn roll_back(&mut self) {
        for (model, reply) in std::mem::take(&mut self.inbox.rollbacks) {
            if let Some(asleep) = self.inbox.asleep.get(&model) {
                reply(Ok(Outcome::RolledBack { next: asleep.next }));
                continue;
            }
            let (state, _) = keep::newest(self.keeping.dir(), &model);
            // What was created from a checkpoint has a state from then on.
            let to = state.as_ref().map_or(1, |(next, _)| *next);
            if let Err(e) = self.models.roll_back(&model, state.as_ref().map(|(_, path)| path.as_path())) {
                reply(Err(e));
                continue;
            }
            self.keeping.keeper().marked(&model, None);
            let Some(next) = self.inbox.scheduler.next_of(&model) else { continue };
            let then = Box::new(move |_: &Result<()>| reply(Ok(Outcome::RolledBack { next: to })));
            self.keeping.begin(&model, &self.models, (next, next), Some(then));
        }
    }

    /// Runs whose numbers are not finite are marked.
    pub(super) fn mark(&mut self, models: &[(ModelId, usize)]) {
        for (model, _) in models {
            if let Some(run) = self.models.run_mut(model)
                && let Some(fault) = run.fault.clone().filter(|_| !run.marked)
            {
                run.marked = true;
                tracing::warn!(run = %model, seq_id = fault.seq_id, datum = fault.datum, "its numbers are not finite");
                self.keeping.keeper().marked(model, Some(fault));
            }
        }
    }

    /// The files of runs that have ended go.
    pub(super) fn end_unloaded(&mut self) {
        for (model, reply) in std::mem::take(&mut self.inbox.unloaded) {
            self.keeping.end(&model, &self.models);
            if let Some(reply) = reply {
                reply(Ok(Outcome::Unloaded));
            }
        }
    }
}
