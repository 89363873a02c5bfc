//! Fused kernels for the CPU, on the slices of Burn's `Flex` tensors.
//!
//! All sums have a fixed order, so a token's numbers are the same bits whatever stands beside it and on however many
//! threads they are computed.

mod adamw;
mod attention;
mod dot;
mod flex;
mod gemm;
mod math;
mod pack;
mod rows;
pub(crate) mod simd;
mod thin;

use std::ops::Range;

use rayon::prelude::*;

use self::dot::{Product, dot_products};
use self::flex::{Values, buffer, matrix, update, values};
use self::gemm::{Gemm, RightSide};
use self::pack::View;
use self::simd::Slice;
use super::{AdamStep, Heads, Kernels, KvSpan, LoraRows, Mat, Pass, RopeTable, RowPair, Targets, Weight};

/// The CPU's kernels.
pub struct Cpu;

/// `x · wᵀ + bias` for row-major x (m, k) and each w (n, k).
fn product(pass: Pass, x: &[f32], m: usize, k: usize, weights: &[(Slice, Option<&[f32]>)]) -> Vec<Vec<f32>> {
    let mut ys: Vec<Vec<f32>> = weights.iter().map(|(w, _)| buffer(m * w.count() / k)).collect();
    match pass {
        Pass::Sample => {
            let products =
                weights.iter().zip(&mut ys).map(|((w, bias), y)| Product { w: *w, bias: *bias, y }).collect();
            dot_products(x, m, k, products);
        }
        Pass::Train => {
            let (mut full, mut half) = (Vec::new(), Vec::new());
            for ((w, _), y) in weights.iter().zip(&mut ys) {
                let n = w.count() / k;
                match w {
                    Slice::F32(w) => full.push(RightSide { b: View::transposed(w, k), n, c: y, ldc: n }),
                    Slice::Bf16(w) => half.push(RightSide { b: View::transposed(w, k), n, c: y, ldc: n }),
                }
            }
            Gemm::new(m, 0, k).run_many(View::rows(x, k), full);
            Gemm::new(m, 0, k).run_many(View::rows(x, k), half);
            for ((w, bias), y) in weights.iter().zip(&mut ys) {
                let n = w.count() / k;
                if let Some(bias) = bias {
                    y.par_chunks_mut(n).with_min_len(64).for_each(|row| rows::axpy(row, 1.0, bias));
                }
            }
        }
    }
    ys
}

/// `scale · xᵀ` of a row-major matrix with `cols` columns.
fn transposed(x: &[f32], cols: usize, scale: f32) -> Vec<f32> {
    let rows = x.len() / cols;
    let mut t = buffer(x.len());
    t.par_chunks_mut(rows).with_min_len(8).enumerate().for_each(|(c, t)| {
        t.iter_mut().zip(x.chunks_exact(cols)).for_each(|(t, row)| *t = row[c] * scale);
    });
    t
}

fn accumulator(acc: Option<Mat>, shape: [usize; 2]) -> Mat {
    acc.unwrap_or_else(|| matrix(vec![0.0; shape[0] * shape[1]], shape))
}

impl Kernels for Cpu {
    fn linear(&self, pass: Pass, x: &Mat, weights: &[Weight]) -> Vec<Mat> {
        let [m, k] = x.dims();
        let held: Vec<_> = weights.iter().map(|w| (flex::weights(w.w), w.bias.map(values))).collect();
        let slices: Vec<_> = held.iter().map(|(w, b)| (w.slice(), b.as_deref())).collect();
        let ys = product(pass, &values(x), m, k, &slices);
        ys.into_iter().zip(weights).map(|(y, w)| matrix(y, [m, w.w.dims()[0]])).collect()
    }

    fn linear_input_grad(&self, dx: Option<Mat>, dy: &Mat, w: &Mat) -> Mat {
        let ([m, n], [_, k]) = (dy.dims(), w.dims());
        let (dys, ws) = (values(dy), flex::weights(w));
        let run = |gemm: Gemm, dx: &mut [f32]| match ws.slice() {
            Slice::F32(ws) => gemm.run(View::rows(&dys, n), View::rows(ws, k), dx, k),
            Slice::Bf16(ws) => gemm.run(View::rows(&dys, n), View::rows(ws, k), dx, k),
        };
        let gemm = Gemm::new(m, k, n);
        match dx {
            Some(dx) => update(dx, |dx| run(gemm.accumulate(), dx)),
            None => {
                let mut dx = buffer(m * k);
                run(gemm, &mut dx);
                matrix(dx, [m, k])
            }
        }
    }

    fn outer_grad(&self, acc: Option<Mat>, dy: &Mat, x: &Mat, pairs: &[RowPair], scale: f32) -> Mat {
        let ([_, n], [_, k]) = (dy.dims(), x.dims());
        let (dys, xs) = (values(dy), values(x));
        update(accumulator(acc, [n, k]), |acc| {
            if n.min(k) <= thin::THIN {
                // The left side is the thin one, or the right side is and the result is its transpose.
                let left = n <= k;
                let rows = |p: &RowPair| {
                    let (small, wide) = if left { (p.left.start, p.right) } else { (p.right, p.left.start) };
                    thin::Rows { small, wide, len: p.left.len() }
                };
                let rows: Vec<thin::Rows> = pairs.iter().map(rows).collect();
                let operands = if left {
                    thin::Operands { small: &dys, r: n, wide: &xs, n: k }
                } else {
                    thin::Operands { small: &xs, r: k, wide: &dys, n }
                };
                return thin::outer(operands, &rows, scale, acc, !left);
            }
            for p in pairs {
                let (a, b) = (View::transposed(&dys[p.left.start * n..], n), View::rows(&xs[p.right * k..], k));
                Gemm::new(n, k, p.left.len()).alpha(scale).accumulate().run(a, b, acc, k);
            }
        })
    }

    fn row_sum_grad(&self, acc: Option<Mat>, dy: &Mat, ranges: &[Range<usize>]) -> Mat {
        let [_, n] = dy.dims();
        let dys = values(dy);
        update(accumulator(acc, [1, n]), |acc| {
            for r in ranges {
                dys[r.start * n..r.end * n].chunks_exact(n).for_each(|row| rows::axpy(acc, 1.0, row));
            }
        })
    }

    fn lora_down(&self, x: &Mat, parts: &[LoraRows]) -> Vec<Mat> {
        let [_, k] = x.dims();
        let xs = values(x);
        let down = |p: &LoraRows| {
            let (m, r) = (p.rows.len(), p.a.dims()[0]);
            // A has few rows: reading x as it lies beats packing it, in training too.
            let xa =
                product(Pass::Sample, &xs[p.rows.start * k..p.rows.end * k], m, k, &[(Slice::F32(&values(p.a)), None)]);
            matrix(xa.into_iter().next().expect("one weight, one output"), [m, r])
        };
        parts.iter().map(down).collect()
    }

    fn lora_up(&self, pass: Pass, y: Mat, xa: &[Mat], parts: &[LoraRows]) -> Mat {
        let [_, n] = y.dims();
        update(y, |y| {
            for (p, xa) in parts.iter().zip(xa) {
                let [m, r] = xa.dims();
                let y = &mut y[p.rows.start * n..p.rows.end * n];
                let (b, xa) = (values(p.b), values(xa));
                match pass {
                    Pass::Train => {
                        let (xa, b) = (View::rows(&xa, r), View::transposed(&b, r));
                        Gemm::new(m, n, r).alpha(p.scale).accumulate().run(xa, b, y, n);
                    }
                    Pass::Sample => {
                        let d = product(pass, &xa, m, r, &[(Slice::F32(&b), None)]).swap_remove(0);
                        rows::axpy(y, p.scale, &d);
                    }
                }
            }
        })
    }

    fn lora_input_grad(&self, dx: Mat, dy: &Mat, parts: &[LoraRows]) -> (Mat, Vec<Mat>) {
        let ([_, k], [_, n]) = (dx.dims(), dy.dims());
        let dys = values(dy);
        let mut kept = Vec::with_capacity(parts.len());
        let dx = update(dx, |dx| {
            for p in parts {
                let (m, r) = (p.rows.len(), p.a.dims()[0]);
                let dy = &dys[p.rows.start * n..p.rows.end * n];
                let bt = transposed(&values(p.b), r, p.scale);
                let dxa = product(Pass::Sample, dy, m, n, &[(Slice::F32(&bt), None)]).swap_remove(0);
                let dx = &mut dx[p.rows.start * k..p.rows.end * k];
                Gemm::new(m, k, r).accumulate().run(View::rows(&dxa, r), View::rows(&values(p.a), k), dx, k);
                kept.push(matrix(dxa, [m, r]));
            }
        });
        (dx, kept)
    }

    fn rms_norm(&self, x: &Mat, w: &Mat, eps: f32) -> Mat {
        let xs = values(x);
        let mut y = buffer(xs.len());
        rows::rms_norm(&mut y, &xs, &values(w), eps);
        matrix(y, x.dims())
    }

    fn rms_norm_grad(&self, dx: Option<Mat>, dy: &Mat, x: &Mat, w: &Mat, eps: f32) -> Mat {
        let (dys, xs, ws) = (values(dy), values(x), values(w));
        update(accumulator(dx, x.dims()), |dx| rows::rms_norm_grad(dx, &dys, &xs, &ws, eps))
    }

    fn rms_norm_weight_grad(
        &self,
        acc: Option<Mat>,
        dy: &Mat,
        x: &Mat,
        n: usize,
        eps: f32,
        ranges: &[Range<usize>],
    ) -> Mat {
        let [_, cols] = x.dims();
        let (dys, xs) = (values(dy), values(x));
        update(accumulator(acc, [1, n]), |acc| {
            for r in ranges {
                let at = r.start * cols..r.end * cols;
                rows::rms_norm_weight_grad(acc, &dys[at.clone()], &xs[at], eps);
            }
        })
    }

    fn rope(&self, x: Mat, table: &RopeTable, positions: &[u32], inverse: bool) -> Mat {
        let ([_, row], [_, half]) = (x.dims(), table.cos.dims());
        let (cos, sin) = (values(&table.cos), values(&table.sin));
        update(x, |x| rows::rope(x, row, &cos, &sin, half, positions, if inverse { -1.0 } else { 1.0 }))
    }

    fn attention(&self, q: &Mat, k: &Mat, v: &Mat, heads: Heads, seqs: &[Range<usize>]) -> Mat {
        matrix(attention::forward(&values(q), &values(k), &values(v), heads, seqs), q.dims())
    }

    fn attention_grad(
        &self,
        d_o: &Mat,
        q: &Mat,
        k: &Mat,
        v: &Mat,
        heads: Heads,
        seqs: &[Range<usize>],
    ) -> (Mat, Mat, Mat) {
        let (qs, ks, vs) = (values(q), values(k), values(v));
        let saw = attention::Saw { q: &qs, k: &ks, v: &vs };
        let (dq, dk, dv) = attention::backward(&values(d_o), &saw, heads, seqs);
        (matrix(dq, q.dims()), matrix(dk, k.dims()), matrix(dv, v.dims()))
    }

    fn attention_extended(&self, q: &Mat, heads: Heads, rows: &[Range<usize>], caches: &[KvSpan]) -> Mat {
        let held: Vec<(Values, Values, usize)> = caches.iter().map(|s| (values(s.k), values(s.v), s.len)).collect();
        let spans: Vec<attention::Span> = held.iter().map(|(k, v, len)| attention::Span { k, v, len: *len }).collect();
        matrix(attention::extended(&values(q), heads, rows, &spans), q.dims())
    }

    fn attention_cached(&self, q: &Mat, heads: Heads, caches: &[Vec<KvSpan>]) -> Mat {
        let held: Vec<Vec<(Values, Values, usize)>> =
            caches.iter().map(|c| c.iter().map(|s| (values(s.k), values(s.v), s.len)).collect()).collect();
        let spans: Vec<Vec<attention::Span>> =
            held.iter().map(|c| c.iter().map(|(k, v, len)| attention::Span { k, v, len: *len }).collect()).collect();
        matrix(attention::cached(&values(q), heads, &spans), q.dims())
    }

    fn swiglu(&self, gate: &Mat, up: &Mat) -> Mat {
        let g = values(gate);
        let mut y = buffer(g.len());
        rows::swiglu(&mut y, &g, &values(up));
        matrix(y, gate.dims())
    }

    fn swiglu_grad(&self, dy: &Mat, gate: &Mat, up: &Mat) -> (Mat, Mat) {
        let g = values(gate);
        let (mut dg, mut du) = (buffer(g.len()), buffer(g.len()));
        rows::swiglu_grad(&mut dg, &mut du, &values(dy), &g, &values(up));
        (matrix(dg, gate.dims()), matrix(du, up.dims()))
    }

    fn embed(&self, table: &Mat, ids: &[u32]) -> Mat {
        let [_, d] = table.dims();
        let t = flex::weights(table);
        let mut x = Vec::with_capacity(ids.len() * d);
        for id in ids {
            let row = *id as usize * d..(*id as usize + 1) * d;
            match t.slice() {
                Slice::F32(t) => x.extend_from_slice(&t[row]),
                Slice::Bf16(t) => x.extend(t[row].iter().map(|v| v.widen())),
            }
        }
        matrix(x, [ids.len(), d])
    }

    fn embed_grad(&self, acc: Option<Mat>, dy: &Mat, ids: &[u32], vocab: usize) -> Mat {
        let [_, d] = dy.dims();
        let dys = values(dy);
        update(accumulator(acc, [vocab, d]), |acc| {
            for (id, row) in ids.iter().zip(dys.chunks_exact(d)) {
                rows::axpy(&mut acc[*id as usize * d..][..d], 1.0, row);
            }
        })
    }

    fn target_logprobs(&self, logits: &Mat, targets: Targets) -> (Vec<f64>, Vec<f32>) {
        let [t, v] = logits.dims();
        let x = values(logits);
        let lse: Vec<f64> = (0..t).into_par_iter().map(|i| rows::log_sum_exp(&x[i * v..][..v])).collect();
        let mut lp = Vec::with_capacity(targets.ids.len());
        for i in 0..t {
            let ids = &targets.ids[targets.offsets[i]..targets.offsets[i + 1]];
            lp.extend(ids.iter().map(|id| (f64::from(x[i * v + *id as usize]) - lse[i]) as f32));
        }
        (lse, lp)
    }

    fn target_logprobs_grad(&self, logits: Mat, lse: &[f64], targets: Targets, grads: &[f32]) -> Mat {
        let [_, v] = logits.dims();
        update(logits, |x| {
            x.par_chunks_mut(v).enumerate().for_each(|(i, row)| {
                let at = targets.offsets[i]..targets.offsets[i + 1];
                let g: f32 = grads[at.clone()].iter().sum();
                rows::scaled_softmax(row, lse[i], -g);
                for (id, g) in targets.ids[at.clone()].iter().zip(&grads[at]) {
                    row[*id as usize] += g;
                }
            });
        })
    }

    fn add(&self, x: Mat, y: &Mat) -> Mat {
        let ys = values(y);
        update(x, |x| rows::for_row_chunks(x, 1, |i, x| rows::axpy(x, 1.0, &ys[i..][..x.len()])))
    }

    fn write_rows(&self, dst: Mat, at: usize, src: &Mat, range: Range<usize>) -> Mat {
        let [_, n] = dst.dims();
        let s = values(src);
        update(dst, |d| d[at * n..][..range.len() * n].copy_from_slice(&s[range.start * n..range.end * n]))
    }

    fn adamw(&self, param: Mat, grad: &Mat, m: Mat, v: Mat, step: &AdamStep) -> (Mat, Mat, Mat) {
        let g = values(grad);
        let (mut new_m, mut new_v) = (None, None);
        let param = update(param, |p| {
            new_m = Some(update(m, |m| {
                new_v = Some(update(v, |v| adamw::step(p, &g, m, v, step)));
            }));
        });
        (param, new_m.expect("updated above"), new_v.expect("updated above"))
    }

    fn sum_of_squares(&self, x: &Mat) -> f64 {
        adamw::sum_of_squares(&values(x))
    }
}
