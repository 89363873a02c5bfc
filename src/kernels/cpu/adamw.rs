//! AdamW (Loshchilov & Hutter 2019) in one sweep over parameter, gradient and both moments.

use rayon::prelude::*;

use super::simd::simd_loop;
use crate::kernels::AdamStep;

const CHUNK: usize = 1 << 14;

/// Updates `p`, `m` and `v` in place; all have one length.
pub fn step(p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], s: &AdamStep) {
    let chunks = p.par_chunks_mut(CHUNK).zip(g.par_chunks(CHUNK));
    chunks.zip(m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK))).for_each(|((p, g), (m, v))| chunk(p, g, m, v, s));
}

simd_loop! {
    fn chunk(p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], s: &AdamStep) {
        let keep = (1.0 - s.learning_rate * s.weight_decay) as f32;
        let (b1, b2, a1, a2) = (s.beta1 as f32, s.beta2 as f32, (1.0 - s.beta1) as f32, (1.0 - s.beta2) as f32);
        let (c1, c2, eps) = (s.correction1 as f32, s.correction2 as f32, s.eps as f32);
        let (lr, scale) = (s.learning_rate as f32, s.grad_scale as f32);
        for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
            let g = g * scale;
            *m = b1 * *m + a1 * g;
            *v = b2 * *v + a2 * g * g;
            let update = (*m / c1) / ((*v / c2).sqrt() + eps);
            *p = *p * keep - lr * update;
        }
    }
}

/// Σ x² in f64, in blocks of a fixed size that are added in order.
pub fn sum_of_squares(x: &[f32]) -> f64 {
    let blocks: Vec<f64> = x.par_chunks(CHUNK).map(|c| c.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()).collect();
    blocks.iter().sum()
}
