//! Fused kernels that work row by row: normalisation, SwiGLU, rotation, log-softmax and its derivative.

use rayon::prelude::*;

use super::math::{dot, exp, max, sigmoid, sum_exp};
use super::simd::simd_loop;

/// Values per task; fewer in total and one thread does it all.
const CHUNK: usize = 1 << 14;

/// Calls `f(first row, rows)` over `out` cut into whole rows, on several threads when it is worth it.
pub fn for_row_chunks(out: &mut [f32], row: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = (CHUNK / row.max(1)).max(1);
    if out.len() <= CHUNK {
        f(0, out);
    } else {
        out.par_chunks_mut(rows * row).enumerate().for_each(|(i, c)| f(i * rows, c));
    }
}

/// `y = x / rms(x) · w` per group of `w.len()`.
pub fn rms_norm(y: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
    let n = w.len();
    for_row_chunks(y, n, |i, y| rms_norm_rows(y, &x[i * n..][..y.len()], w, eps));
}

simd_loop! {
    fn rms_norm_rows(y: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
        for (y, x) in y.chunks_exact_mut(w.len()).zip(x.chunks_exact(w.len())) {
            let r = inverse_rms(x, eps);
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * r * w;
            }
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// `dx += ∂/∂x` of [`rms_norm`].
pub fn rms_norm_grad(dx: &mut [f32], dy: &[f32], x: &[f32], w: &[f32], eps: f32) {
    let n = w.len();
    for_row_chunks(dx, n, |i, dx| {
        let len = dx.len();
        rms_norm_grad_rows(dx, &dy[i * n..][..len], &x[i * n..][..len], w, eps);
    });
}

simd_loop! {
    fn rms_norm_grad_rows(dx: &mut [f32], dy: &[f32], x: &[f32], w: &[f32], eps: f32) {
        let n = w.len();
        let mut gw = vec![0f32; n];
        for ((dx, dy), x) in dx.chunks_exact_mut(n).zip(dy.chunks_exact(n)).zip(x.chunks_exact(n)) {
            let r = inverse_rms(x, eps);
            for ((g, dy), w) in gw.iter_mut().zip(dy).zip(w) {
                *g = dy * w;
            }
            let c = dot(&gw, x) * r * r * r / n as f32;
            for ((dx, g), x) in dx.iter_mut().zip(&gw).zip(x) {
                *dx += g * r - x * c;
            }
        }
    }
}

/// `dw += Σ dy · x / rms(x)` over the groups of x, in order.
pub fn rms_norm_weight_grad(dw: &mut [f32], dy: &[f32], x: &[f32], eps: f32) {
    let n = dw.len();
    for (dy, x) in dy.chunks_exact(n).zip(x.chunks_exact(n)) {
        let r = inverse_rms(x, eps);
        for ((dw, dy), x) in dw.iter_mut().zip(dy).zip(x) {
            *dw += dy * x * r;
        }
    }
}

/// `y = silu(gate) · up`.
pub fn swiglu(y: &mut [f32], gate: &[f32], up: &[f32]) {
    for_row_chunks(y, 1, |i, y| swiglu_rows(y, &gate[i..][..y.len()], &up[i..][..y.len()]));
}

simd_loop! {
    fn swiglu_rows(y: &mut [f32], gate: &[f32], up: &[f32]) {
        for ((y, g), u) in y.iter_mut().zip(gate).zip(up) {
            *y = g * sigmoid(*g) * u;
        }
    }
}

/// Derivatives of [`swiglu`].
pub fn swiglu_grad(d_gate: &mut [f32], d_up: &mut [f32], dy: &[f32], gate: &[f32], up: &[f32]) {
    let task = |(i, (dg, du)): (usize, (&mut [f32], &mut [f32]))| {
        let (at, len) = (i * CHUNK, dg.len());
        swiglu_grad_rows(dg, du, &dy[at..][..len], &gate[at..][..len], &up[at..][..len]);
    };
    d_gate.par_chunks_mut(CHUNK).zip(d_up.par_chunks_mut(CHUNK)).enumerate().for_each(task);
}

simd_loop! {
    fn swiglu_grad_rows(dg: &mut [f32], du: &mut [f32], dy: &[f32], gate: &[f32], up: &[f32]) {
        for ((((dg, du), dy), g), u) in dg.iter_mut().zip(du).zip(dy).zip(gate).zip(up) {
            let s = sigmoid(*g);
            let silu = g * s;
            *du = dy * silu;
            *dg = dy * u * (s + silu * (1.0 - s));
        }
    }
}

/// Rotates each head of each row by its position's angles; `sign` −1 turns back.
pub fn rope(x: &mut [f32], row: usize, cos: &[f32], sin: &[f32], half: usize, positions: &[u32], sign: f32) {
    for_row_chunks(x, row, |first, x| {
        for (x, p) in x.chunks_exact_mut(row).zip(&positions[first..]) {
            let at = *p as usize * half;
            rope_row(x, &cos[at..at + half], &sin[at..at + half], sign);
        }
    });
}

simd_loop! {
    fn rope_row(x: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
        for head in x.chunks_exact_mut(2 * cos.len()) {
            let (lo, hi) = head.split_at_mut(cos.len());
            for (((a, b), c), s) in lo.iter_mut().zip(hi).zip(cos).zip(sin) {
                let (x0, x1, s) = (*a, *b, s * sign);
                *a = x0 * c - x1 * s;
                *b = x1 * c + x0 * s;
            }
        }
    }
}

simd_loop! {
    /// log Σ exp of a row. NaN if any value is.
    pub fn log_sum_exp(row: &[f32]) -> f32 {
        let m = max(row);
        if m == f32::INFINITY {
            return f32::INFINITY;
        }
        m + sum_exp(row, m).ln()
    }
}

simd_loop! {
    /// Softmax in place; returns the log-sum-exp.
    pub fn softmax(row: &mut [f32]) -> f32 {
        let m = max(row);
        let mut acc = 0f32;
        for x in row.iter_mut() {
            *x = exp(*x - m);
        }
        acc += super::math::sum(row);
        let inv = 1.0 / acc;
        for x in row.iter_mut() {
            *x *= inv;
        }
        m + acc.ln()
    }
}

simd_loop! {
    /// `row = g · exp(row − lse)`.
    pub fn scaled_softmax(row: &mut [f32], lse: f32, g: f32) {
        for x in row {
            *x = g * exp(*x - lse);
        }
    }
}

simd_loop! {
    /// From scores and `dP` of one query to probabilities and `dS = P · (dP − δ) · scale`, both in place.
    pub fn attention_grad_row(scores: &mut [f32], dp: &mut [f32], lse: f32, delta: f32, scale: f32) {
        for (s, d) in scores.iter_mut().zip(dp) {
            let p = exp(*s - lse);
            *s = p;
            *d = p * (*d - delta) * scale;
        }
    }
}

simd_loop! {
    /// Inner product with a fixed order.
    pub fn inner(a: &[f32], b: &[f32]) -> f32 {
        dot(a, b)
    }
}

simd_loop! {
    /// `y += a · x`.
    pub fn axpy(y: &mut [f32], a: f32, x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += a * x;
        }
    }
}
