//! The decoder over a whole packed pass: forward to target logprobs, and back to every trained matrix.

use crate::kernels::Mat;
use crate::model::batch::Batch;
use crate::model::config::DecoderConfig;
use crate::model::grads::Grads;
use crate::model::head::{HeadTape, PassTargets};
use crate::model::layer::{Context, Tape};
use crate::model::params::{Param, Site};

/// How much a training pass may keep for its backward half.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Values of layer activations; layers beyond it are computed again from their inputs.
    pub activations: usize,
    /// Values of logits; chunks beyond it are computed again.
    pub logits: usize,
}

/// A layer of a finished forward pass.
enum Kept {
    Tape(Box<Tape>),
    /// Its input (T, D).
    Input(Box<Mat>),
}

/// A forward pass that waits for the loss's derivative.
pub struct Forward {
    /// Logprob of each target, flat in the order of the pass.
    pub logprobs: Vec<f32>,
    /// Output of the last layer, before and after the final norm.
    last: Mat,
    h: Mat,
    layers: Vec<Kept>,
    head: HeadTape,
}

/// Called between layers, so that long passes let short work through.
pub type Breather<'a> = &'a mut dyn FnMut();

/// Values a layer keeps for each token.
pub fn tape_values(c: &DecoderConfig) -> usize {
    let raw = if c.qk_norm { c.q_size() + c.kv_size() } else { 0 };
    2 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + raw + 2 * c.intermediate_size
}

impl Context<'_> {
    fn embed(&self) -> Mat {
        self.kernels.embed(self.weights.expect(Param::Embed), &self.batch.tokens)
    }

    fn final_norm(&self, x: &Mat) -> Mat {
        let eps = self.weights.config.rms_norm_eps as f32;
        self.kernels.rms_norm(x, self.weights.expect(Param::FinalNorm), eps)
    }

    /// Normalised hidden states (T, D) without anything kept. `attend` gives a layer's attention output.
    pub fn hidden(&self, mut attend: impl FnMut(&Self, usize, &Mat) -> Mat, breathe: Breather) -> Mat {
        let mut x = self.embed();
        for layer in 0..self.weights.config.num_layers {
            let o = attend(self, layer, &x);
            x = self.finish(x, &o, layer);
            breathe();
        }
        self.final_norm(&x)
    }

    /// Target logprobs without anything kept for a backward pass.
    pub fn logprobs_only(&self, targets: &PassTargets, breathe: Breather) -> Vec<f32> {
        let attend = |c: &Self, layer: usize, x: &Mat| {
            let qkv = c.qkv(x, layer);
            c.kernels.attention(&qkv.q, &qkv.k, &qkv.v, c.heads(), &c.batch.seqs())
        };
        let h = self.hidden(attend, breathe);
        self.target_logprobs(&h, targets, 0).0
    }

    /// The forward half of a training pass.
    pub fn forward_all(&self, targets: &PassTargets, budget: Budget, breathe: Breather) -> Forward {
        let c = &self.weights.config;
        let affordable = budget.activations / (self.batch.tokens.len() * tape_values(c)).max(1);
        // The top layers are read back first, so they are the ones to keep.
        let first_kept = c.num_layers.saturating_sub(affordable);
        let mut x = self.embed();
        let mut layers = Vec::with_capacity(c.num_layers);
        for layer in 0..c.num_layers {
            let (y, tape) = self.forward(x.clone(), layer);
            layers.push(if layer < first_kept { Kept::Input(Box::new(x)) } else { Kept::Tape(Box::new(tape)) });
            x = y;
            breathe();
        }
        let h = self.final_norm(&x);
        let (logprobs, head) = self.target_logprobs(&h, targets, budget.logits);
        breathe();
        Forward { logprobs, last: x, h, layers, head }
    }

    /// The backward half: adds each group's gradients to its accumulators.
    pub fn backward_all(
        &self,
        targets: &PassTargets,
        fwd: Forward,
        d_logprobs: &[f32],
        grads: &mut [Grads],
        full: bool,
        breathe: Breather,
    ) {
        let (k, c) = (self.kernels, &self.weights.config);
        let Forward { last, h, mut layers, head, .. } = fwd;
        let dh = self.target_logprobs_grad(&h, targets, head, d_logprobs, grads, full);
        breathe();
        let bottom = if full { 0 } else { lowest_adapted_layer(self.batch, c.num_layers) };
        if bottom == c.num_layers {
            return;
        }
        let (norm, eps) = (self.weights.expect(Param::FinalNorm), c.rms_norm_eps as f32);
        if full {
            let at = self.weights.position(Param::FinalNorm).expect("every decoder has it");
            for (group, grads) in self.batch.groups.iter().zip(grads.iter_mut()) {
                grads.update(at, |acc| k.rms_norm_weight_grad(acc, &dh, &last, c.hidden_size, eps, &group.seqs));
            }
        }
        let mut dx = k.rms_norm_grad(None, &dh, &last, norm, eps);
        drop((dh, h, last));
        for layer in (bottom..c.num_layers).rev() {
            let tape = match layers.pop().expect("one entry per layer") {
                Kept::Tape(t) => *t,
                Kept::Input(x) => self.forward(*x, layer).1,
            };
            dx = self.backward(dx, tape, layer, grads, full, full || layer > bottom);
            breathe();
        }
        if full {
            for (group, grads) in self.batch.groups.iter().zip(grads.iter_mut()) {
                let (ids, dy) =
                    (&self.batch.tokens[group.rows.clone()], dx.clone().narrow(0, group.rows.start, group.rows.len()));
                grads.update(0, |acc| k.embed_grad(acc, &dy, ids, c.vocab_size));
            }
        }
    }
}

/// The lowest layer in which any group has an adapter; the number of layers when none has.
fn lowest_adapted_layer(batch: &Batch, num_layers: usize) -> usize {
    let lowest =
        |sites: &[Site]| sites.iter().find_map(|s| if let Site::Layer(layer, _) = s { Some(*layer) } else { None });
    let adapters = batch.groups.iter().filter_map(|g| g.adapter);
    adapters.filter_map(|a| lowest(&a.sites)).min().unwrap_or(num_layers)
}
