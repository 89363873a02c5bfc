//! Adding tokens: samples begin while there is room, and all sequences of a lane grow by one token at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rayon::prelude::*;

use crate::command::SampleRequest;
use crate::engine::job::Job;
use crate::engine::models::Models;
use crate::engine::prefill::{context, kv_values, rows_of};
use crate::engine::sample::{Parts, Sampler};
use crate::engine::sequence::{Active, Drawn, draw, next_lane, panicked};
use crate::engine::sources::Source;
use crate::error::Result;
use crate::ids::OwnerId;
use crate::kernels::download;
use crate::model::kv_cache::KvCache;
use crate::scheduler::Shares;

impl Sampler {
    /// Starts samples while there is room, each time of the owner who has the fewest for its weight; one without any may
    /// always begin.
    pub(super) fn begin_samples(&mut self, models: &Models, shares: &Shares) {
        if !self.jobs.iter().any(|(_, j)| j.has_more()) {
            return;
        }
        let mut room = self.room(shares);
        let mut starts = Vec::new();
        loop {
            let rank = |o: &OwnerId| room.begun(o) as f64 / shares.weight(o);
            let open = self.jobs.iter_mut().filter(|(_, j)| j.has_more());
            let before = |a: &&mut (u64, Job), b: &&mut (u64, Job)| {
                rank(&a.1.origin.owner).total_cmp(&rank(&b.1.origin.owner)).then(a.0.cmp(&b.0))
            };
            let Some((id, job)) = open.min_by(before) else { break };
            let owner = job.origin.owner.clone();
            let need = kv_values(job.source.base.config(), job.request.params.max_tokens);
            if room.begun(&owner) > 0 && !room.admits(&owner, need) {
                break;
            }
            room.take(&owner, need);
            starts.push((*id, job.begin()));
        }
        for (id, index) in starts {
            let first = || self.job(id).first_token(models, id, index);
            let begun = catch_unwind(AssertUnwindSafe(first)).unwrap_or_else(|_| Err(panicked()));
            match begun {
                // One sample's failure is the whole request's.
                _ if !self.job(id).is_open() => {}
                Ok((active, ended)) => self.keep(active, ended),
                Err(e) => self.fail(id, e),
            }
        }
        self.finish_jobs();
    }

    fn keep(&mut self, active: Active, ended: bool) {
        self.job(active.job).tell(&active, ended);
        if ended { self.job_mut(active.job).end(active) } else { self.active.push(active) }
    }

    /// Adds a token to every running sequence of the next of `lead`'s lanes.
    pub(super) fn decode(&mut self, models: &Models, lead: &OwnerId) -> Parts {
        let leads = self.active.iter().filter(|a| self.job(a.job).origin.owner == *lead);
        let Some(lane) = next_lane(leads.map(|a| self.job(a.job).source.lane), self.last_lane) else {
            return Parts::new();
        };
        self.last_lane = lane;
        self.counters.decode_step();
        let all = std::mem::take(&mut self.active);
        let (mut now, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| self.job(a.job).source.lane == lane);
        self.active = rest;
        now.sort_by_key(|a| (Arc::as_ptr(&self.job(a.job).source) as usize, a.job, a.index));
        let parts = now.iter().map(|a| (self.job(a.job).origin.owner.clone(), 1)).collect();
        self.advance(models, now);
        self.finish_jobs();
        parts
    }

    /// One token for each of `now`. After a panic each tries alone, and only those requests fail that fail again.
    fn advance(&mut self, models: &Models, mut now: Vec<Active>) {
        match catch_unwind(AssertUnwindSafe(|| self.decode_logits(models, &mut now))) {
            Ok(logits) => self.draw_all(now, &logits),
            Err(_) if now.len() > 1 => {
                for active in now {
                    if self.job(active.job).is_open() {
                        self.advance(models, vec![active]);
                    }
                }
            }
            Err(_) => now.into_iter().for_each(|a| self.fail(a.job, panicked())),
        }
    }

    fn draw_all(&mut self, now: Vec<Active>, logits: &[f32]) {
        let vocab = logits.len() / now.len();
        let place = |a: &Active| (&self.job(a.job).request, a.index, a.sequence.tokens.len());
        let places: Vec<(&SampleRequest, usize, usize)> = now.iter().map(place).collect();
        let drawn: Vec<Result<Drawn>> = places
            .par_iter()
            .zip(logits.par_chunks(vocab))
            .map(|((request, index, position), row)| draw(request, *index, *position, row))
            .collect();
        for (mut active, drawn) in now.into_iter().zip(drawn) {
            let id = active.job;
            let job = self.job(id);
            if !job.is_open() {
                continue;
            }
            let mut push = |token| active.push(&job.request, token, job.source.version);
            let pushed = drawn.and_then(|token| {
                catch_unwind(AssertUnwindSafe(|| push(token))).map_err(|_| panicked())
            });
            match pushed {
                Ok(ended) => self.keep(active, ended),
                Err(e) => self.fail(id, e),
            }
        }
    }

    fn decode_logits(&self, models: &Models, now: &mut [Active]) -> Vec<f32> {
        // The token drawn last is not in the cache yet; after a panic it may be there in part.
        now.iter_mut().for_each(|a| a.cache.own.truncate(a.sequence.tokens.len() - 1));
        let sources: Vec<Arc<Source>> = now.iter().map(|a| self.job(a.job).source.clone()).collect();
        let batch = rows_of(&sources, now.iter().map(|a| (a.last_token(), a.cache.len() as u32)));
        let context = context(models, &sources[0], &batch);
        let mut caches: Vec<&mut KvCache> = now.iter_mut().map(|a| &mut a.cache).collect();
        let h = context.decode(&mut caches);
        download(context.logits(&h))
    }
}
