//! Causal grouped-query attention over packed sequences, forward and backward, and over cached keys and values.
//!
//! As in FlashAttention (Dao et al. 2022) the probabilities are recomputed from the log-sum-exp, block by block of
//! queries, so nothing of size T × T is kept. A sequence's result depends on that sequence alone.

use std::ops::Range;

use rayon::prelude::*;

use super::flex::buffer;
use super::gemm::Gemm;
use super::pack::View;
use super::rows::{attention_grad_row, axpy, inner, softmax};
use crate::kernels::Heads;

/// Queries per block.
const BLOCK: usize = 64;

/// Writes disjoint (rows, columns) patches of a shared row-major matrix.
struct Patches {
    data: *mut f32,
    len: usize,
    ld: usize,
}
// SAFETY: every task writes patches of its own.
unsafe impl Sync for Patches {}

impl Patches {
    fn new(m: &mut [f32], ld: usize) -> Self {
        Self { data: m.as_mut_ptr(), len: m.len(), ld }
    }

    fn write(&self, row: usize, col: usize, width: usize, patch: &[f32]) {
        for (i, src) in patch.chunks_exact(width).enumerate() {
            let at = (row + i) * self.ld + col;
            assert!(at + width <= self.len, "patch outside the matrix");
            // SAFETY: in bounds by the assertion; no other task has this patch.
            unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.data.add(at), width) };
        }
    }
}

/// o (T, N·H) of causal attention inside each of `seqs`.
pub fn forward(q: &[f32], k: &[f32], v: &[f32], heads: Heads, seqs: &[Range<usize>]) -> Vec<f32> {
    let Heads { n, dim, .. } = heads;
    let total = q.len() / (n * dim);
    debug_assert_eq!(seqs.iter().map(ExactSizeIterator::len).sum::<usize>(), total, "sequences tile the rows");
    let mut o = buffer(total * n * dim);
    let op = Patches::new(&mut o, n * dim);
    let tasks: Vec<(usize, Range<usize>, usize)> = seqs
        .iter()
        .flat_map(|s| (s.start..s.end).step_by(BLOCK).flat_map(move |b| (0..n).map(move |h| (h, s.clone(), b))))
        .collect();
    let run = |(h, seq, first): &(usize, Range<usize>, usize)| {
        let m = BLOCK.min(seq.end - first);
        let block = Block { h: *h, first: *first, m, start: seq.start, seen: first + m - seq.start };
        op.write(*first, h * dim, dim, &block.attend(q, k, v, heads));
    };
    if total * n * dim <= 1 << 12 {
        tasks.iter().for_each(run)
    } else {
        tasks.par_iter().for_each(run)
    }
    o
}

/// o (T, N·H) of new rows behind cached ones: `rows[i]` are the last tokens of `spans[i]`, which holds their keys and
/// values already. The same blocks as in [`forward`], counted from the sequence's first token, so that a sequence run in
/// several pieces gives what it gives in one.
pub fn extended(q: &[f32], heads: Heads, rows: &[Range<usize>], spans: &[Span]) -> Vec<f32> {
    let Heads { n, dim, .. } = heads;
    let mut o = buffer(q.len());
    let op = Patches::new(&mut o, n * dim);
    let mut tasks = Vec::new();
    for (rows, span) in rows.iter().zip(spans) {
        let past = span.len - rows.len();
        let mut at = past;
        while at < span.len {
            let end = ((at / BLOCK + 1) * BLOCK).min(span.len);
            let block = |h| Block { h, first: rows.start + at - past, m: end - at, start: 0, seen: end };
            tasks.extend((0..n).map(|h| (block(h), span)));
            at = end;
        }
    }
    let run = |(block, span): &(Block, &Span)| {
        op.write(block.first, block.h * dim, dim, &block.attend(q, span.k, span.v, heads));
    };
    if q.len() <= 1 << 12 {
        tasks.iter().for_each(run)
    } else {
        tasks.par_iter().for_each(run)
    }
    o
}

/// Some queries of one head: rows `first..first + m` of q, the last of the `seen` rows of k and v from `start` on.
struct Block {
    h: usize,
    first: usize,
    m: usize,
    start: usize,
    seen: usize,
}

impl Block {
    /// The output (m, H).
    fn attend(&self, q: &[f32], k: &[f32], v: &[f32], heads: Heads) -> Vec<f32> {
        let Heads { n, kv, dim } = heads;
        let Self { h, m, start, seen, .. } = *self;
        let mut s = buffer(m * seen);
        self.scores(&mut s, q, k, heads);
        for (i, row) in s.chunks_exact_mut(seen).enumerate() {
            let visible = seen - m + i + 1;
            softmax(&mut row[..visible]);
            row[visible..].fill(0.0);
        }
        let mut out = buffer(m * dim);
        let values = View::rows(&v[(start * kv + h / (n / kv)) * dim..], kv * dim);
        Gemm::new(m, dim, seen).serial().run(View::rows(&s, seen), values, &mut out, dim);
        out
    }

    /// `s = q · kᵀ / √H`, (m, seen).
    fn scores(&self, s: &mut [f32], q: &[f32], k: &[f32], heads: Heads) {
        let Heads { n, kv, dim } = heads;
        let Self { h, first, m, start, seen } = *self;
        let queries = View::rows(&q[(first * n + h) * dim..], n * dim);
        let keys = View::transposed(&k[(start * kv + h / (n / kv)) * dim..], kv * dim);
        Gemm::new(m, seen, dim).alpha(scale(dim)).serial().run(queries, keys, s, seen);
    }
}

fn scale(dim: usize) -> f32 {
    1.0 / (dim as f32).sqrt()
}

/// What the forward pass saw.
pub struct Saw<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
}

/// Derivatives with respect to q (T, N·H), k and v (T, G·H).
pub fn backward(d_o: &[f32], saw: &Saw, heads: Heads, seqs: &[Range<usize>]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let Heads { n, kv, dim } = heads;
    let total = saw.q.len() / (n * dim);
    let (mut dq, mut dk, mut dv) = (buffer(total * n * dim), buffer(total * kv * dim), buffer(total * kv * dim));
    let out = [Patches::new(&mut dq, n * dim), Patches::new(&mut dk, kv * dim), Patches::new(&mut dv, kv * dim)];
    let tasks: Vec<(usize, Range<usize>)> = seqs.iter().flat_map(|s| (0..kv).map(move |g| (g, s.clone()))).collect();
    tasks.par_iter().for_each(|(g, seq)| group_backward(d_o, saw, heads, *g, seq, &out));
    (dq, dk, dv)
}

/// One key/value head of one sequence: its query heads in order, so that sums have a fixed order.
fn group_backward(d_o: &[f32], saw: &Saw, heads: Heads, g: usize, seq: &Range<usize>, [dq, dk, dv]: &[Patches; 3]) {
    let Heads { n, kv, dim } = heads;
    let len = seq.len();
    let (mut dk_g, mut dv_g) = (vec![0f32; len * dim], vec![0f32; len * dim]);
    let (mut s, mut dp, mut dq_b) = (buffer(BLOCK * len), buffer(BLOCK * len), buffer(BLOCK * dim));
    let key_at = (seq.start * kv + g) * dim;
    for h in g * (n / kv)..(g + 1) * (n / kv) {
        for first in (seq.start..seq.end).step_by(BLOCK) {
            let m = BLOCK.min(seq.end - first);
            let seen = first + m - seq.start;
            let (s, dp) = (&mut s[..m * seen], &mut dp[..m * seen]);
            let at = (first * n + h) * dim;
            Block { h, first, m, start: seq.start, seen }.scores(s, saw.q, saw.k, heads);
            let d_out = View::rows(&d_o[at..], n * dim);
            let values = View::transposed(&saw.v[key_at..], kv * dim);
            Gemm::new(m, seen, dim).serial().run(d_out, values, dp, seen);
            for (i, (s, dp)) in s.chunks_exact_mut(seen).zip(dp.chunks_exact_mut(seen)).enumerate() {
                let visible = seen - m + i + 1;
                attention_grad_row(&mut s[..visible], &mut dp[..visible], scale(dim));
                s[visible..].fill(0.0);
                dp[visible..].fill(0.0);
            }
            let (s, dp) = (&*s, &*dp);
            let outer = |x: &[f32], y: View, acc: &mut [f32]| {
                Gemm::new(seen, dim, m).accumulate().serial().run(View::transposed(x, seen), y, acc, dim);
            };
            outer(s, d_out, &mut dv_g);
            outer(dp, View::rows(&saw.q[at..], n * dim), &mut dk_g);
            let keys = View::rows(&saw.k[key_at..], kv * dim);
            let dq_b = &mut dq_b[..m * dim];
            Gemm::new(m, dim, seen).serial().run(View::rows(dp, seen), keys, dq_b, dim);
            dq.write(first, h * dim, dim, dq_b);
        }
    }
    dk.write(seq.start, g * dim, dim, &dk_g);
    dv.write(seq.start, g * dim, dim, &dv_g);
}

/// A cached stretch of keys and values: `len` rows of (capacity, G·H).
pub struct Span<'a> {
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub len: usize,
}

/// One query per row, each over its own spans: q (T, N·H) → (T, N·H).
pub fn cached(q: &[f32], heads: Heads, caches: &[Vec<Span>]) -> Vec<f32> {
    let Heads { n, kv, dim } = heads;
    let mut o = vec![0f32; q.len()];
    let run = |(i, (o, q)): (usize, (&mut [f32], &[f32]))| {
        let spans = &caches[i / kv];
        let g = i % kv;
        group_cached(o, q, dim, g, kv, spans);
    };
    // One task per (row, key/value head): the query heads of a group lie side by side in q and o.
    let width = n / kv * dim;
    let seen: usize = caches.iter().flatten().map(|s| s.len).sum();
    if seen * n * dim <= 1 << 15 {
        o.chunks_mut(width).zip(q.chunks(width)).enumerate().for_each(run);
    } else {
        o.par_chunks_mut(width).zip(q.par_chunks(width)).enumerate().for_each(run);
    }
    o
}

fn group_cached(o: &mut [f32], q: &[f32], dim: usize, g: usize, kv: usize, spans: &[Span]) {
    let seen: usize = spans.iter().map(|s| s.len).sum();
    let mut p = buffer(seen);
    for (o, q) in o.chunks_exact_mut(dim).zip(q.chunks_exact(dim)) {
        let mut at = 0;
        for span in spans {
            for t in 0..span.len {
                let key = &span.k[(t * kv + g) * dim..][..dim];
                p[at + t] = inner(q, key) * scale(dim);
            }
            at += span.len;
        }
        softmax(&mut p);
        let mut at = 0;
        for span in spans {
            for t in 0..span.len {
                axpy(o, p[at + t], &span.v[(t * kv + g) * dim..][..dim]);
            }
            at += span.len;
        }
    }
}
