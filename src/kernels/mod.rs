//! The operations the decoder is made of: one trait, with a reference in plain tensor operations and fused versions.
//!
//! Every operation has its derivative beside it, so the engine needs no autodiff graph. Shape letters: T tokens of a
//! pass, D model, N query heads, G key/value heads, H head size, F feed-forward, V vocabulary, R rank.

mod pages;
mod reference;

#[cfg(test)]
mod agreement;
#[cfg(feature = "flex")]
pub mod cpu;

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

pub use pages::room;
pub use reference::Reference;

/// All parameters and activations are matrices; vectors are (1, n).
pub type Mat = Tensor<2>;

/// How many rows an operation expects. Decides the algorithm, never the number of rows itself: a row's result must
/// not depend on what stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Thousands of tokens: weights are repacked for arithmetic speed.
    Train,
    /// A few tokens to a few hundred: weights are read once, as they lie.
    Sample,
}

/// A frozen or trained weight (out, in) with its bias (1, out).
#[derive(Clone, Copy)]
pub struct Weight<'a> {
    pub w: &'a Mat,
    pub bias: Option<&'a Mat>,
}

/// Rows of a pass that belong to one adapter, and its two matrices at this place.
#[derive(Clone)]
pub struct LoraRows<'a> {
    pub rows: Range<usize>,
    /// (R, in)
    pub a: &'a Mat,
    /// (out, R)
    pub b: &'a Mat,
    /// alpha / R
    pub scale: f32,
}

/// Rows `left` of one matrix paired with as many rows of another, from `right` on.
#[derive(Clone, Debug)]
pub struct RowPair {
    pub left: Range<usize>,
    pub right: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    pub n: usize,
    pub kv: usize,
    pub dim: usize,
}

/// Cosines and sines of rotary angles, each (positions, H/2).
pub struct RopeTable {
    pub cos: Mat,
    pub sin: Mat,
}

/// Part of a sequence's cached keys and values at one layer: the first `len` rows of (capacity, G·H) matrices.
#[derive(Clone, Copy)]
pub struct KvSpan<'a> {
    pub k: &'a Mat,
    pub v: &'a Mat,
    pub len: usize,
}

/// Target ids per row of logits: row i has `ids[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Copy)]
pub struct Targets<'a> {
    pub offsets: &'a [usize],
    pub ids: &'a [u32],
}

/// One AdamW update with its bias corrections worked out (protocol §14.4).
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// 1 − β1^step and 1 − β2^step.
    pub correction1: f64,
    pub correction2: f64,
    /// Factor on the gradient: below 1 when the global norm is clipped.
    pub grad_scale: f64,
}

/// Operations over matrices of one device. Wrong shapes are a caller's bug and panic.
pub trait Kernels: Send + Sync {
    /// `x · Wᵢᵀ + biasᵢ` for each weight: x (T, in) → (T, outᵢ).
    fn linear(&self, pass: Pass, x: &Mat, weights: &[Weight]) -> Vec<Mat>;

    /// `dx + dy · W`: dy (T, out) → (T, in).
    fn linear_input_grad(&self, dx: Option<Mat>, dy: &Mat, w: &Mat) -> Mat;

    /// `acc + scale · Σ dy[left]ᵀ · x[right]`, one pair after the other: → (cols of dy, cols of x).
    fn outer_grad(&self, acc: Option<Mat>, dy: &Mat, x: &Mat, pairs: &[RowPair], scale: f32) -> Mat;

    /// `acc + Σ rows of dy`, one range after the other: → (1, cols).
    fn row_sum_grad(&self, acc: Option<Mat>, dy: &Mat, rows: &[Range<usize>]) -> Mat;

    /// Each adapter's `x · Aᵀ` over its rows: (rows, R).
    fn lora_down(&self, x: &Mat, parts: &[LoraRows]) -> Vec<Mat>;

    /// Adds each adapter's `scale · xa · Bᵀ` to its rows of y.
    fn lora_up(&self, pass: Pass, y: Mat, xa: &[Mat], parts: &[LoraRows]) -> Mat;

    /// Adds each adapter's part to dx; also gives each `scale · dy · B` (rows, R), the gradient of `x · Aᵀ`.
    fn lora_input_grad(&self, dx: Mat, dy: &Mat, parts: &[LoraRows]) -> (Mat, Vec<Mat>);

    /// `x / rms(x) · w` over groups of `w`'s length: w (1, n), x's columns a multiple of n.
    fn rms_norm(&self, x: &Mat, w: &Mat, eps: f32) -> Mat;

    /// `dx + ∂/∂x`.
    fn rms_norm_grad(&self, dx: Option<Mat>, dy: &Mat, x: &Mat, w: &Mat, eps: f32) -> Mat;

    /// `acc + ∂/∂w`, one range of rows after the other: → (1, n).
    fn rms_norm_weight_grad(
        &self,
        acc: Option<Mat>,
        dy: &Mat,
        x: &Mat,
        n: usize,
        eps: f32,
        rows: &[Range<usize>],
    ) -> Mat;

    /// Rotates each head of x (T, heads·H) by its row's position; `inverse` is the derivative.
    fn rope(&self, x: Mat, table: &RopeTable, positions: &[u32], inverse: bool) -> Mat;

    /// Causal attention inside each of `seqs`, ranges that tile the rows: q (T, N·H), k and v (T, G·H) → (T, N·H).
    fn attention(&self, q: &Mat, k: &Mat, v: &Mat, heads: Heads, seqs: &[Range<usize>]) -> Mat;

    /// Derivatives with respect to q, k and v. Probabilities are computed again from the scores: a log-sum-exp kept in f32
    /// would cost them digits wherever scores are large.
    fn attention_grad(
        &self,
        d_o: &Mat,
        q: &Mat,
        k: &Mat,
        v: &Mat,
        heads: Heads,
        seqs: &[Range<usize>],
    ) -> (Mat, Mat, Mat);

    /// Causal attention of new tokens to what is cached of their sequences: `rows[i]` of q (T, N·H) are the last tokens of
    /// `caches[i]`, which holds their keys and values already → (T, N·H). On the CPU the same bits as [`Self::attention`]
    /// gives for the whole sequence, however it was cut.
    fn attention_extended(&self, q: &Mat, heads: Heads, rows: &[Range<usize>], caches: &[KvSpan]) -> Mat;

    /// Attention of one new token per row to its cached keys and values: q (T, N·H) → (T, N·H).
    fn attention_cached(&self, q: &Mat, heads: Heads, caches: &[Vec<KvSpan>]) -> Mat;

    /// `silu(gate) · up`, all (T, F).
    fn swiglu(&self, gate: &Mat, up: &Mat) -> Mat;

    /// Derivatives with respect to gate and up.
    fn swiglu_grad(&self, dy: &Mat, gate: &Mat, up: &Mat) -> (Mat, Mat);

    /// Rows of the table (V, D): → (T, D).
    fn embed(&self, table: &Mat, ids: &[u32]) -> Mat;

    /// Adds row i of dy to row `ids[i]` of acc (V, D), in order.
    fn embed_grad(&self, acc: Option<Mat>, dy: &Mat, ids: &[u32], vocab: usize) -> Mat;

    /// Log-sum-exp of each row of logits, and the logprob of each target. The sum is kept in f64: beside logits of 30 an
    /// f32 would cost every probability two units of the sixth decimal place.
    fn target_logprobs(&self, logits: &Mat, targets: Targets) -> (Vec<f64>, Vec<f32>);

    /// Logits become the derivative of `Σ gᵢ · logprobᵢ`: at each row `Σ g · onehot − (Σ g) · softmax`.
    fn target_logprobs_grad(&self, logits: Mat, lse: &[f64], targets: Targets, grads: &[f32]) -> Mat;

    /// `x + y`, in place where x is not shared.
    fn add(&self, x: Mat, y: &Mat) -> Mat;

    /// Copies `rows` of src over dst, from row `at` on, in place where dst is not shared.
    fn write_rows(&self, dst: Mat, at: usize, src: &Mat, rows: Range<usize>) -> Mat;

    /// One step on a parameter and its two moments.
    fn adamw(&self, param: Mat, grad: &Mat, m: Mat, v: Mat, step: &AdamStep) -> (Mat, Mat, Mat);

    /// Σ x², in f64 where the device can.
    fn sum_of_squares(&self, x: &Mat) -> f64;
}

/// The kernels for a device: fused ones on the CPU, tensor operations elsewhere.
pub fn for_device(device: &Device) -> &'static dyn Kernels {
    #[cfg(feature = "flex")]
    if *device == Device::flex() {
        return &cpu::Cpu;
    }
    let _ = device;
    &Reference
}

/// What computes, for the log: the CPU with the instructions its kernels use, or Burn's name of the device.
pub fn describe(device: &Device) -> String {
    #[cfg(feature = "flex")]
    if *device == Device::flex() {
        return format!("cpu ({})", cpu::simd::isa());
    }
    format!("{device:?}")
}

/// Uploads row-major host values.
pub fn upload(values: Vec<f32>, shape: [usize; 2], device: &Device) -> Mat {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Downloads row-major values; moves them out without a copy where the device is this machine's memory.
pub fn download(x: Mat) -> Vec<f32> {
    x.into_data().convert::<f32>().try_into_vec().expect("a matrix holds f32")
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_named_with_its_instructions() {
        let text = describe(&Device::flex());
        let known = ["cpu (AVX-512)", "cpu (AVX2)", "cpu (portable instructions)"];
        assert!(known.contains(&text.as_str()), "{text}");
    }
}
