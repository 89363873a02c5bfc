//! Adding tokens: samples begin while there is room, and all sequences of a lane grow by one token at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rayon::prelude::*;

use crate::command::SampleRequest;
use crate::engine::job::Job;
use crate::engine::meter::Piece;
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
            let pushed = drawn.and_then(|token| catch_unwind(AssertUnwindSafe(|| push(token))).map_err(|_| panicked()));
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
        let shares = now.iter().map(|a| (self.job(a.job).origin.promise.clone(), 1)).collect();
        let mut caches: Vec<&mut KvCache> = now.iter_mut().map(|a| &mut a.cache).collect();
        models.meter.samples(Piece::Tokens, shares, || download(context.logits(&context.decode(&mut caches))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use burn::tensor::{DType, Device};

    use super::*;
    use crate::command::{
        LoraConfig, Origin, Outcome, RunKind, SampleOutput, SampleSource, SamplingParams, Sequence, Stop,
    };
    use crate::engine::models::{ModelSource, Trained};
    use crate::engine::sample::SamplerLimits;
    use crate::engine::sources::Budget;
    use crate::ids::{ModelId, RequestId, SamplerId, SessionId};
    use crate::kernels::upload;
    use crate::model::batch::Batch;
    use crate::model::kv_cache::Stretch;
    use crate::model::weights::Adapter;
    use crate::sampling;

    const CONFIG: LoraConfig = LoraConfig { rank: 2, seed: 7, train_attn: true, train_mlp: true, train_unembed: true };

    struct Rig {
        models: Models,
        sampler: Sampler,
        shares: Shares,
        _dir: tempfile::TempDir,
    }

    fn run() -> ModelId {
        ModelId("s:train:0".into())
    }

    fn follower() -> SamplerId {
        SamplerId("s:sample:0".into())
    }

    impl Rig {
        /// A small model and a run whose adapter is not zero.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3");
            for file in ["config.json", "model.safetensors"] {
                std::fs::copy(golden.join(file), dir.path().join(file)).unwrap();
            }
            std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
            let sources = [ModelSource { name: "tiny".into(), dir: dir.path().into() }];
            let spill = dir.path().join("snapshots");
            let budget = Budget { memory: 1 << 30, disk: 1 << 30 };
            let mut models = Models::load(&sources, Device::flex(), DType::F32, budget, spill).unwrap();
            let plan = models.plan("tiny", RunKind::Lora(CONFIG)).unwrap();
            models.create(&run(), plan, None).unwrap();
            let limits = SamplerLimits { sequences: 8, kv_values: 1 << 24 };
            let sampler = Sampler::new(limits, Arc::default());
            Self { models, sampler, shares: Shares::default(), _dir: dir }
        }

        /// Changes the run's weights and publishes them as those of save number `version`.
        fn update(&mut self, version: u64) -> Arc<Source> {
            let device = self.models.device.clone();
            let mats = self.models.run_mut(&run()).unwrap().trained.mats_mut();
            for (i, m) in mats.iter_mut().enumerate() {
                let shape = m.dims();
                let value = |j: usize| (((j + i) * 37 + version as usize * 101) % 97) as f32 / 400.0 - 0.12;
                *m = upload((0..shape[0] * shape[1]).map(value).collect(), shape, &device);
            }
            let source = self.models.publish(&run(), &follower(), version).unwrap();
            self.sampler.move_to(&source);
            source
        }

        fn submit(&mut self, owner: &str, request: SampleRequest) -> Receiver<Result<Outcome>> {
            let (tx, rx) = channel();
            let session = SessionId("s".into());
            let origin = Origin { owner: OwnerId(owner.into()), session, promise: RequestId::random() };
            let reply = Box::new(move |outcome| tx.send(outcome).unwrap_or(()));
            self.sampler.submit(&self.models, (origin, 0), request, reply, None);
            rx
        }

        fn step(&mut self) {
            let lead = self.sampler.next_owner(&self.shares).unwrap();
            self.sampler.step(&mut self.models, &self.shares, &lead);
        }

        fn finish(&mut self) {
            while !self.sampler.is_idle() {
                self.step();
            }
        }

        /// The same tokens one by one without a sampler: `source(i)` gives the i-th.
        fn replay(&self, request: &SampleRequest, source: impl Fn(usize) -> Arc<Source>) -> (Vec<u32>, Vec<u32>) {
            let first = source(0);
            let batch = Batch::pack(vec![(first.adapter(), vec![&request.prompt])]);
            let (h, mut prompt) = context(&self.models, &first, &batch).prefill(&self.models.device);
            let config = first.base.config();
            let own = Stretch::new(config, request.params.max_tokens, request.params.max_tokens, &self.models.device);
            let mut cache = KvCache { prompt: Arc::new(prompt.remove(0)), own };
            let row = |token, at| (token, at as u32);
            let n = request.prompt.len();
            let sources = [first.clone()];
            let last = rows_of(&sources, std::iter::once(row(request.prompt[n - 1], n - 1)));
            let mut logits = download(context(&self.models, &first, &last).logits(&h.narrow(0, n - 1, 1)));
            let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
            for i in 0..request.params.max_tokens {
                let choice = sampling::sample(&logits, &request.params, 0, i as u32).unwrap();
                tokens.push(choice.token);
                logprobs.push(choice.logprob.to_bits());
                let sources = [source(i + 1)];
                let batch = rows_of(&sources, std::iter::once(row(choice.token, n + i)));
                let context = context(&self.models, &sources[0], &batch);
                let h = context.decode(&mut [&mut cache]);
                logits = download(context.logits(&h));
            }
            (tokens, logprobs)
        }
    }

    fn request(source: SampleSource, prompt: u32, max_tokens: usize) -> SampleRequest {
        SampleRequest {
            base: "tiny".into(),
            source,
            prompt: (0..prompt).map(|i| (i * 5 + 3) % 64).collect(),
            num_samples: 1,
            params: SamplingParams { max_tokens, seed: 5, stop: Stop::Never, temperature: 1.0, top_k: 0, top_p: 1.0 },
            prompt_logprobs: true,
            prompt_logprobs_last_n: None,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            prompt_targets: None,
            prompt_alt_tokens_k: 0,
        }
    }

    fn sampled(outcome: &Receiver<Result<Outcome>>) -> SampleOutput {
        match outcome.try_recv().unwrap() {
            Ok(Outcome::Sampled(output)) => output,
            other => panic!("not a sample: {other:?}"),
        }
    }

    fn bits(s: &Sequence) -> (Vec<u32>, Vec<u32>) {
        (s.tokens.clone(), s.logprobs.iter().map(|x| x.to_bits()).collect())
    }

    #[test]
    fn after_a_change_of_weights_tokens_are_those_of_the_new_over_the_old_cache() {
        let mut rig = Rig::new();
        let old = rig.update(3);
        let follows = request(SampleSource::Snapshot(follower()), 300, 12);
        let mine = rig.submit("me", follows.clone());
        let neighbour = rig.submit("other", request(SampleSource::Base, 9, 30));
        let grown = |rig: &Rig| {
            let active = rig.sampler.active.iter().find(|a| rig.sampler.job(a.job).request.prompt.len() == 300);
            active.map_or(0, |a| a.sequence.tokens.len())
        };
        while grown(&rig) < 5 {
            rig.step();
        }
        let new = rig.update(8);
        rig.finish();
        let output = sampled(&mine);
        let want = rig.replay(&follows, |i| if i < 5 { old.clone() } else { new.clone() });
        assert_eq!(bits(&output.sequences[0]), want);
        assert_ne!(want, rig.replay(&follows, |_| old.clone()), "the weights must matter");
        assert_eq!(output.sequences[0].weight_versions, [[3; 5].as_slice(), &[8; 7]].concat());
        assert_eq!(sampled(&neighbour).sequences[0].weight_versions, [0; 30]);
    }

    #[test]
    fn a_prompt_in_pieces_gives_the_bits_of_one_alone_and_of_one_beside_others() {
        let mut rig = Rig::new();
        let all = |out: SampleOutput| {
            let prompt: Vec<u32> = out.prompt_logprobs.iter().flatten().map(|x| x.to_bits()).collect();
            (prompt, bits(&out.sequences[0]))
        };
        let long = request(SampleSource::Base, 400, 3);
        let alone = rig.submit("me", long.clone());
        rig.finish();
        let alone = all(sampled(&alone));
        let base = rig.models.source("tiny", &SampleSource::Base).unwrap();
        assert_eq!(alone.1, rig.replay(&long, |_| base.clone()));
        let others: Vec<_> =
            (0..20).map(|i| rig.submit("other", request(SampleSource::Base, 11 + 17 * i, 4))).collect();
        let beside = rig.submit("me", long);
        rig.finish();
        assert_eq!(all(sampled(&beside)), alone);
        others.iter().for_each(|o| drop(sampled(o)));
    }

    #[test]
    fn a_panic_fails_only_the_request_that_panics_alone() {
        let mut rig = Rig::new();
        rig.update(3);
        let base = request(SampleSource::Base, 9, 12);
        let bad =
            rig.submit("me", SampleRequest { num_samples: 3, ..request(SampleSource::Snapshot(follower()), 9, 12) });
        let good = rig.submit("other", base.clone());
        while rig.sampler.active.len() < 4 {
            rig.step();
        }
        let source = rig.update(4);
        let broken = Adapter::init(CONFIG, source.base.config(), &rig.models.device).mats().to_vec();
        let broken = broken.into_iter().map(|m| m.narrow(1, 0, 1)).collect();
        let trained = Some(Trained::Lora(Adapter::new(CONFIG, source.base.config(), broken)));
        rig.sampler.move_to(&Arc::new(Source { trained, ..(*source).clone() }));
        rig.finish();
        assert!(bad.try_recv().unwrap().unwrap_err().message.contains("internal"));
        let weights = rig.models.source("tiny", &SampleSource::Base).unwrap();
        let want = rig.replay(&base, |_| weights.clone());
        assert_eq!(bits(&sampled(&good).sequences[0]), want);
    }
}
