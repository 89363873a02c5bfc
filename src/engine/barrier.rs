//! What is no pass: one command of a run, alone, between the passes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::command::{Outcome, RunCommand, Save};
use crate::engine::handle::Reply;
use crate::engine::meter::Consumer;
use crate::engine::models::{Models, Plan, lost};
use crate::engine::run::Engine;
use crate::engine::train;
use crate::engine::weights;
use crate::error::{Error, Result};
use crate::ids::ModelId;
use crate::model::grads::Grads;

impl Engine {
    pub(super) fn perform(&mut self, model: &ModelId, seq: u64) {
        let Some((command, reply)) = self.inbox.barriers.remove(&(model.clone(), seq)) else { return };
        // The reply goes down with the panic, which fails its promise.
        if catch_unwind(AssertUnwindSafe(|| self.barrier(model, seq, command, reply))).is_err() {
            tracing::error!(run = %model, seq_id = seq, "a request panicked; its run is ended");
            self.unload(model, None);
            self.end_unloaded();
        }
    }

    fn barrier(&mut self, model: &ModelId, seq: u64, command: RunCommand, reply: Reply) {
        let kernels = self.models.kernels;
        let begun = Instant::now();
        // What reads a checkpoint could not be done again once that is deleted.
        let reads = matches!(command, RunCommand::Load(_) | RunCommand::Create { restore: Some(_), .. });
        let revives = matches!(command, RunCommand::Revive { .. });
        let expected = match &command {
            RunCommand::Save(Save::Snapshot { sampler } | Save::Inflight { sampler }) => Some(sampler.clone()),
            _ => None,
        };
        let result = match command {
            RunCommand::OptimStep(params) => match self.models.run_mut(model) {
                Some(run) => {
                    let start = Instant::now();
                    let stepped = train::optim_step(run, kernels, &params);
                    if stepped.is_ok() && std::mem::take(&mut run.marked) {
                        self.keeping.keeper().marked(model, None);
                    }
                    self.models.meter.spent(start.elapsed(), vec![(Consumer::Run(model.clone()), 1)]);
                    stepped
                }
                None => Err(lost(model)),
            },
            RunCommand::Save(Save::Snapshot { sampler }) => {
                self.models.snapshot(model, &sampler, seq).map(|()| Outcome::Saved { size_bytes: 0 })
            }
            RunCommand::Save(Save::Inflight { sampler }) => self.models.publish(model, &sampler, seq).map(|source| {
                self.sampler.move_to(&source);
                Outcome::Saved { size_bytes: 0 }
            }),
            RunCommand::Save(save) => return self.save(model, &save, reply),
            RunCommand::Load(restore) => self.models.load_into(model, &restore).map(|()| Outcome::Loaded),
            RunCommand::Unload => return self.unload(model, Some(reply)),
            RunCommand::Create { restore, .. } => {
                let created = self.planned(model, |models, plan| models.create(model, plan, restore.as_ref()));
                if created.is_err() {
                    self.keeping.end(model, &self.models);
                }
                created
            }
            RunCommand::Revive { state, .. } => self.planned(model, |models, plan| models.revive(model, plan, &state)),
            RunCommand::DropGradient => {
                if let Some(run) = self.models.run_mut(model) {
                    run.grads = Grads::new(run.trained.mats().len());
                }
                Ok(Outcome::Loaded)
            }
            RunCommand::ForwardBackward { .. } | RunCommand::RollBack => Err(Error::server("not a barrier of a run")),
        };
        if let Err(e) = &result {
            tracing::info!(run = %model, seq_id = seq, error = %e, "request failed");
        }
        if self.models.run(model).is_some() && !revives {
            self.keeping.worked(model, begun.elapsed());
        }
        if let Some(sampler) = expected {
            self.inbox.arrived(&sampler, &mut self.models, &mut self.sampler);
        }
        if reads && result.is_ok() {
            let then = Box::new(move |_: &Result<()>| reply(result));
            self.keeping.begin(model, &self.models, (seq + 1, seq), Some(then));
        } else {
            reply(result);
        }
    }

    /// A run that waits to be begun.
    fn planned(&mut self, model: &ModelId, begin: impl FnOnce(&mut Models, Plan) -> Result<()>) -> Result<Outcome> {
        let plan = self.inbox.plans.remove(model).ok_or_else(|| lost(model));
        let begun = plan.and_then(|plan| begin(&mut self.models, plan));
        if begun.is_err() {
            self.inbox.forget(model);
        }
        begun.map(|()| Outcome::Created)
    }

    /// Copies the weights now, and writes them while training goes on.
    fn save(&mut self, model: &ModelId, save: &Save, reply: Reply) {
        let Some(run) = self.models.run(model) else { return reply(Err(lost(model))) };
        let write = weights::begin_save(run, save);
        tracing::debug!(target: "tinderbox::durability", moment = "save", run = %model, "save begins");
        // So that its request leaves the journal some time.
        self.keeping.worked(model, Duration::ZERO);
        // Each holds a copy of a run in memory until it is written; the scheduler waits until one is free.
        self.writers.push(std::thread::spawn(move || {
            reply(write().map(|size_bytes| Outcome::Saved { size_bytes }));
        }));
    }

    pub(super) fn unload(&mut self, model: &ModelId, reply: Option<Reply>) {
        self.models.unload(model);
        self.inbox.forget(model);
        self.inbox.unloaded.push((model.clone(), reply));
    }
}
