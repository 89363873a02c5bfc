//! Fused kernels that work row by row: normalisation, SwiGLU, rotation, log-softmax and its derivative.

use rayon::prelude::*;

use super::math::{dot, exp, max, sigmoid, sum, sum_exp};
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
    pub fn log_sum_exp(row: &[f32]) -> f64 {
        let m = max(row);
        if m == f32::INFINITY {
            return f64::INFINITY;
        }
        f64::from(m) + f64::from(sum_exp(row, m)).ln()
    }
}

simd_loop! {
    /// Softmax in place.
    pub fn softmax(row: &mut [f32]) {
        normalise(row)
    }
}

#[inline(always)]
fn normalise(row: &mut [f32]) {
    let m = max(row);
    for x in row.iter_mut() {
        *x = exp(*x - m);
    }
    let inverse = 1.0 / sum(row);
    for x in row.iter_mut() {
        *x *= inverse;
    }
}

simd_loop! {
    /// `row = g · exp(row − lse)`.
    pub fn scaled_softmax(row: &mut [f32], lse: f64, g: f32) {
        for x in row {
            *x = g * exp((f64::from(*x) - lse) as f32);
        }
    }
}

simd_loop! {
    /// From scores and `dP` of one query to probabilities and `dS = P · (dP − Σ P · dP) · scale`, both in place.
    pub fn attention_grad_row(scores: &mut [f32], dp: &mut [f32], scale: f32) {
        normalise(scores);
        let delta = dot(scores, dp);
        for (p, d) in scores.iter().zip(dp) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// At logits of some hundred a log-sum-exp in f32 would be off by 1e-5, and so would every probability.
    #[test]
    fn probabilities_keep_their_digits_where_logits_are_large() {
        let logits = [300.0f32, 299.5, 298.25, 290.0];
        let total: f64 = logits.iter().map(|x| (f64::from(*x) - 300.0).exp()).sum();
        let want = logits.map(|x| (f64::from(x) - 300.0).exp() / total);
        let near = |got: &[f32]| got.iter().zip(want).all(|(g, w)| (f64::from(*g) / w - 1.0).abs() < 5e-7);
        let mut head = logits;
        scaled_softmax(&mut head, log_sum_exp(&logits), 1.0);
        assert!(near(&head), "{head:?}, want {want:?}");
        let (mut scores, mut dp) = (logits, [1.0, -2.0, 3.0, 0.5]);
        let delta: f64 = want.iter().zip(dp).map(|(p, d)| p * f64::from(d)).sum();
        let derivative: Vec<f64> = want.iter().zip(dp).map(|(p, d)| 0.5 * p * (f64::from(d) - delta)).collect();
        attention_grad_row(&mut scores, &mut dp, 0.5);
        assert!(near(&scores), "{scores:?}, want {want:?}");
        assert!(dp.iter().zip(derivative).all(|(g, w)| (f64::from(*g) - w).abs() < 3e-7), "{dp:?}");
    }
}
