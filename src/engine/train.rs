//! Training: forward and backward passes over packed datums, gradient accumulation, the optimiser step.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::command::{AdamParams, Datum, DatumOutput, Fault, Loss, Outcome};
use crate::engine::handle::Reply;
use crate::engine::meter::Consumer;
use crate::engine::models::{Base, Models, Run, Trained, lost};
use crate::error::{Error, Result};
use crate::ids::ModelId;
use crate::kernels::{AdamStep, Kernels, Mat, Pass, upload};
use crate::loss::{self, DatumLoss};
use crate::model::batch::Batch;
use crate::model::decoder::Budget;
use crate::model::grads::Grads;
use crate::model::head::PassTargets;
use crate::model::layer::Context;
use crate::model::weights::BaseWeights;
use crate::scheduler;

/// How long losses may be evaluated before others get a turn.
const BREATH: Duration = Duration::from_millis(20);

/// A `forward_backward` request that is being worked on.
pub struct Request {
    pub data: Vec<Datum>,
    pub loss: Loss,
    pub forward_only: bool,
    pub reply: Reply,
    outputs: Vec<DatumOutput>,
    losses: Vec<DatumLoss>,
    /// Its own sums, so that a request that fails leaves nothing behind.
    grads: Grads,
    failed: Option<Error>,
    /// The first datum whose numbers were not finite.
    bad: Option<usize>,
}

impl Request {
    pub fn new(data: Vec<Datum>, loss: Loss, forward_only: bool, reply: Reply) -> Self {
        let (outputs, losses) = (Vec::with_capacity(data.len()), Vec::with_capacity(data.len()));
        Self { data, loss, forward_only, reply, outputs, losses, grads: Grads::default(), failed: None, bad: None }
    }
}

/// Requests in the queue, by run and number.
pub type Requests = HashMap<(ModelId, u64), Request>;

/// One request's part of a pass, with the weights it runs over.
#[derive(Clone)]
struct Part {
    key: (ModelId, u64),
    datums: std::ops::Range<usize>,
    trained: Trained,
}

/// Runs a pass; answers the requests it completes. A panic fails only the requests that fail again alone.
pub fn run_pass(
    models: &mut Models,
    requests: &mut Requests,
    pass: scheduler::Pass,
    budget: Budget,
    breathe: &mut dyn FnMut(&mut Models),
) {
    let mut parts = Vec::new();
    let mut surroundings = None;
    for item in pass.items {
        let key = (item.model, item.seq);
        let Some(run) = models.run(&key.0) else { continue };
        surroundings.get_or_insert_with(|| (run.base.clone(), run.weights().clone()));
        let trained = run.trained.clone();
        let all = trained.mats().len();
        // A request that failed in an earlier pass was answered and is gone.
        let Some(request) = requests.get_mut(&key) else { continue };
        if request.grads.mats().is_empty() {
            request.grads = Grads::new(all);
        }
        parts.push(Part { key, datums: item.datums, trained });
    }
    let Some((base, weights)) = surroundings else { return };
    let forward_only = pass.lane.forward_only;
    let mut work = Work { base, weights, kernels: models.kernels, budget, forward_only };
    let keys: Vec<_> = parts.iter().map(|p| p.key.clone()).collect();
    let parts_done: Vec<Part> = if forward_only { Vec::new() } else { parts.clone() };
    let shares = shares(&parts, requests);
    let (start, mut breathed) = (Instant::now(), Duration::ZERO);
    let mut breath = || {
        let start = Instant::now();
        breathe(models);
        breathed += start.elapsed();
    };
    if catch_unwind(AssertUnwindSafe(|| work.run(&parts, requests, &mut breath))).is_err() {
        for part in parts {
            let key = part.key.clone();
            let one = std::slice::from_ref(&part);
            if catch_unwind(AssertUnwindSafe(|| work.run(one, requests, &mut breath))).is_err()
                && let Some(r) = requests.get_mut(&key)
            {
                tracing::error!(run = %key.0, seq_id = key.1, "a pass panicked");
                r.failed = Some(Error::server("an internal error ended this request; the run is unchanged"));
            }
        }
    }
    for part in &parts_done {
        refuse_overflow(&mut work, part, requests, &mut breath);
    }
    drop(work);
    models.meter.trained(start.elapsed().saturating_sub(breathed), shares);
    for key in keys {
        complete(models, requests, &key);
    }
}

/// A request whose gradient is not finite fails, by its first datum that is to blame; its run does not get to see it.
fn refuse_overflow(work: &mut Work, part: &Part, requests: &mut Requests, breathe: &mut dyn FnMut()) {
    let Some(request) = requests.get(&part.key) else { return };
    let complete = request.failed.is_none() && request.outputs.len() == request.data.len();
    if !complete || is_finite(&request.grads, work.kernels) {
        return;
    }
    let (data, loss) = (request.data.clone(), request.loss.clone());
    let count = request.grads.mats().len();
    let alone = (0..data.len()).find(|i| {
        let mut one = Request::new(vec![data[*i].clone()], loss.clone(), false, Box::new(|_| ()));
        one.grads = Grads::new(count);
        let mut requests = HashMap::from([(part.key.clone(), one)]);
        let only = Part { datums: 0..1, ..part.clone() };
        work.run(std::slice::from_ref(&only), &mut requests, breathe);
        requests.get(&part.key).is_some_and(|one| !is_finite(&one.grads, work.kernels))
    });
    // Alone all may be finite: then their sum is not.
    let datum = alone.unwrap_or(data.len() - 1);
    let request = requests.get_mut(&part.key).expect("just seen");
    request.failed =
        Some(Error::user(format!("datum {datum}: its gradient is not finite; nothing of this request was added")));
    request.bad = Some(datum);
}

fn is_finite(grads: &Grads, kernels: &dyn Kernels) -> bool {
    grads.mats().iter().flatten().all(|g| kernels.sum_of_squares(g).is_finite())
}

/// Each run's tokens in a pass.
fn shares(parts: &[Part], requests: &Requests) -> Vec<(Consumer, usize)> {
    let tokens = |p: &Part| requests[&p.key].data[p.datums.clone()].iter().map(|d| d.tokens.len()).sum();
    parts.iter().map(|p| (Consumer::Run(p.key.0.clone()), tokens(p))).collect()
}

/// Answers a request whose datums are all done, and adds its gradients to its run's.
fn complete(models: &mut Models, requests: &mut Requests, key: &(ModelId, u64)) {
    let Some(request) = requests.get(key) else { return };
    if request.failed.is_none() && request.outputs.len() < request.data.len() {
        return;
    }
    let request = requests.remove(key).expect("just seen");
    let kernels = models.kernels;
    let result = match (request.failed, models.run_mut(&key.0)) {
        (Some(e), Some(run)) if request.bad.is_some() && !request.forward_only => {
            let datum = request.bad.unwrap_or_default();
            run.fault.get_or_insert(Fault { seq_id: key.1, datum, reason: e.message.clone() });
            Err(Error::user(format!("{}. {}", e.message, way_back(&key.0))))
        }
        (Some(e), _) => Err(e),
        (None, None) => Err(lost(&key.0)),
        (None, Some(run)) => {
            if !request.forward_only {
                run.grads.merge(kernels, request.grads);
            }
            Ok(Outcome::ForwardBackward { outputs: request.outputs, metrics: loss::combine(&request.losses) })
        }
    };
    (request.reply)(result);
}

/// What every attempt at a pass shares.
struct Work {
    base: Arc<Base>,
    weights: BaseWeights,
    kernels: &'static dyn Kernels,
    budget: Budget,
    forward_only: bool,
}

impl Work {
    /// Forward, loss, backward. Changes the requests only once everything is computed.
    fn run(&mut self, parts: &[Part], requests: &mut Requests, breathe: &mut dyn FnMut()) {
        if parts.is_empty() {
            return;
        }
        let groups = parts.iter().map(|p| {
            let lora = if let Trained::Lora(a) = &p.trained { Some(a) } else { None };
            let seqs: Vec<Vec<u32>> =
                requests[&p.key].data[p.datums.clone()].iter().map(|d| d.tokens.clone()).collect();
            (lora, seqs)
        });
        let batch = Batch::pack(groups.collect());
        let full = matches!(parts[0].trained, Trained::Full(_));
        let targets = targets(parts, requests);
        let context = Context {
            kernels: self.kernels,
            weights: &self.weights,
            rope: &self.base.rope,
            pass: Pass::Train,
            batch: &batch,
        };
        if self.forward_only {
            let logprobs = context.logprobs_only(&targets, breathe);
            evaluate(parts, requests, &logprobs, breathe);
            return;
        }
        // A request's sums go on from where its earlier passes left them, datum by datum. The old values stay with the
        // request until the pass is through, in case it has to be repeated.
        let mut grads: Vec<Grads> = parts.iter().map(|p| requests[&p.key].grads.clone()).collect();
        let forward = context.forward_all(&targets, self.budget, breathe);
        let (d_logprobs, results) = losses(parts, requests, &forward.logprobs, breathe);
        context.backward_all(&targets, forward, &d_logprobs, &mut grads, full, breathe);
        for ((part, grads), result) in parts.iter().zip(grads).zip(results) {
            let request = requests.get_mut(&part.key).expect("its datums were just used");
            request.grads = grads;
            record(request, result);
        }
    }
}

/// All targets of a pass, in its order.
fn targets(parts: &[Part], requests: &Requests) -> PassTargets {
    let (mut offsets, mut ids) = (vec![0], Vec::new());
    for p in parts {
        for d in &requests[&p.key].data[p.datums.clone()] {
            for row in d.targets.chunks(d.k) {
                ids.extend_from_slice(row);
                offsets.push(ids.len());
            }
        }
    }
    PassTargets { offsets, ids }
}

/// Or why it failed, with the datum when its numbers were not finite.
type PartLoss = Result<Vec<(DatumOutput, DatumLoss)>, (Error, Option<usize>)>;

/// Each part's losses, and the derivative of all logprobs: zero where a loss failed.
fn losses(
    parts: &[Part],
    requests: &Requests,
    logprobs: &[f32],
    breathe: &mut dyn FnMut(),
) -> (Vec<f32>, Vec<PartLoss>) {
    let mut d_logprobs = vec![0.0; logprobs.len()];
    let (mut at, mut last) = (0, Instant::now());
    let mut results = Vec::with_capacity(parts.len());
    for p in parts {
        let request = &requests[&p.key];
        let mut part = Vec::with_capacity(p.datums.len());
        let mut failed = None;
        for (i, d) in p.datums.clone().zip(&request.data[p.datums.clone()]) {
            let lp = &logprobs[at..at + d.targets.len()];
            // Users' own losses may take a while.
            if last.elapsed() >= BREATH {
                breathe();
                last = Instant::now();
            }
            match datum_loss(&request.loss, d, lp) {
                Ok(result) => {
                    d_logprobs[at..at + lp.len()].copy_from_slice(&result.1.d_logprobs);
                    part.push(result);
                }
                // A loss of the user's own may fail for other reasons.
                Err(e) => {
                    let not_finite = !matches!(request.loss, Loss::Custom(_)) || lp.iter().any(|x| x.is_nan());
                    failed = failed.or(Some((e.context(format!("datum {i}")), not_finite.then_some(i))));
                }
            }
            at += lp.len();
        }
        results.push(failed.map_or(Ok(part), Err));
    }
    (d_logprobs, results)
}

fn datum_loss(loss: &Loss, d: &Datum, logprobs: &[f32]) -> Result<(DatumOutput, DatumLoss)> {
    if let Some(i) = logprobs.iter().position(|x| x.is_nan()) {
        return Err(Error::user(format!(
            "the logprob at position {} is not a number: the run's weights have diverged",
            i / d.k
        )));
    }
    let result = loss::evaluate(loss, d, logprobs)?;
    let output = DatumOutput { logprobs: logprobs.to_vec(), k: d.k, two_dimensional: d.two_dimensional };
    Ok((output, result))
}

fn evaluate(parts: &[Part], requests: &mut Requests, logprobs: &[f32], breathe: &mut dyn FnMut()) {
    let (_, results) = losses(parts, requests, logprobs, breathe);
    for (part, result) in parts.iter().zip(results) {
        record(requests.get_mut(&part.key).expect("its datums were just used"), result);
    }
}

fn record(request: &mut Request, result: PartLoss) {
    match result {
        Ok(part) => {
            for (output, loss) in part {
                request.outputs.push(output);
                request.losses.push(loss);
            }
        }
        Err((e, bad)) => (request.failed, request.bad) = (Some(e), bad),
    }
}

/// What can be done about a run whose numbers are not finite.
fn way_back(model: &ModelId) -> String {
    format!(
        "The next optim_step will be refused. If the weights have diverged: `tinderbox rollback {model}`, or POST \
         /api/v1/training_runs/{model}/rollback, takes them back to the run's last good state; load_state to a checkpoint"
    )
}

/// AdamW over a run's accumulated gradient, which it uses up (protocol §14.4).
///
/// # Errors
/// When the gradient is not finite or a part of it is missing: it is dropped, and the weights stay as they were.
pub fn optim_step(run: &mut Run, kernels: &dyn Kernels, p: &AdamParams) -> Result<Outcome> {
    let count = run.trained.mats().len();
    let grads = std::mem::replace(&mut run.grads, Grads::new(count));
    if let Some(Fault { seq_id, reason, .. }) = run.fault.take() {
        return Err(Error::user(format!(
            "no step was taken, and the accumulated gradient was dropped: the request with seq_id {seq_id} is missing in \
             it ({reason}); the weights are unchanged"
        )));
    }
    // From 0.0 on: the sum of nothing would be -0.0.
    let squares = grads.mats().iter().flatten().fold(0.0, |sum, g| sum + kernels.sum_of_squares(g));
    let norm = squares.sqrt();
    if !norm.is_finite() {
        return Err(Error::user(
            "the accumulated gradient is not finite, so no step was taken and it was dropped; the weights are unchanged",
        ));
    }
    let moments = &mut run.moments;
    let moving = moments.step > 0 || !grads.is_empty();
    moments.step += 1;
    let clipped = p.grad_clip_norm > 0.0 && norm > p.grad_clip_norm;
    let step = AdamStep {
        learning_rate: p.learning_rate,
        beta1: p.beta1,
        beta2: p.beta2,
        eps: p.eps,
        weight_decay: p.weight_decay,
        correction1: 1.0 - p.beta1.powf(moments.step as f64),
        correction2: 1.0 - p.beta2.powf(moments.step as f64),
        grad_scale: if clipped { p.grad_clip_norm / norm } else { 1.0 },
    };
    if moving || p.weight_decay != 0.0 {
        apply(run, kernels, &grads, &step);
    }
    let metrics = [("grad_norm", norm), ("learning_rate", p.learning_rate), ("step", run.moments.step as f64)];
    Ok(Outcome::OptimStep { metrics: metrics.map(|(name, value)| (name.to_string(), value)).into() })
}

fn apply(run: &mut Run, kernels: &dyn Kernels, grads: &Grads, step: &AdamStep) {
    let zeros = |m: &Mat| upload(vec![0.0; m.dims()[0] * m.dims()[1]], m.dims(), &m.device());
    let blank = |moments: Vec<Mat>, params: &[Mat]| {
        if moments.is_empty() { params.iter().map(zeros).collect() } else { moments }
    };
    // Taken out whole, so that matrices nobody else holds are changed where they lie.
    let params = std::mem::take(run.trained.mats_mut());
    let m = blank(std::mem::take(&mut run.moments.m), &params);
    let v = blank(std::mem::take(&mut run.moments.v), &params);
    for (((param, grad), m), v) in params.into_iter().zip(grads.mats()).zip(m).zip(v) {
        let grad = grad.clone().unwrap_or_else(|| zeros(&param));
        let (param, m, v) = kernels.adamw(param, &grad, m, v, step);
        run.trained.mats_mut().push(param);
        run.moments.m.push(m);
        run.moments.v.push(v);
    }
}
