//! The same operations in plain Burn tensor operations: the reference for the fused kernels, and what GPUs run.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation};

use super::{
    AdamStep, Heads, Kernels, KvSpan, LoraRows, Mat, Pass, RopeTable, RowPair, Targets, Weight, download, upload,
};

/// Kernels for any device Burn has.
pub struct Reference;

fn ids_tensor(ids: &[u32], device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    Tensor::from_data(TensorData::new(ids.clone(), [ids.len()]), device)
}

/// Where the targets of t rows of v logits lie in the flattened matrix.
fn flat_ids(targets: Targets, t: usize, v: usize) -> Vec<u32> {
    let of_row =
        |i: usize| targets.ids[targets.offsets[i]..targets.offsets[i + 1]].iter().map(move |id| (i * v) as u32 + id);
    (0..t).flat_map(of_row).collect()
}

/// A stored weight as the arithmetic wants it.
fn wide(w: &Mat) -> Mat {
    if w.dtype() == DType::F32 { w.clone() } else { w.clone().cast(DType::F32) }
}

fn rows(x: &Mat, range: &Range<usize>) -> Mat {
    x.clone().narrow(0, range.start, range.len())
}

fn add_rows(y: Mat, range: &Range<usize>, delta: Mat) -> Mat {
    let [_, n] = y.dims();
    let sum = rows(&y, range) + delta;
    y.slice_assign([range.clone(), 0..n], sum)
}

fn plus(acc: Option<Mat>, x: Mat) -> Mat {
    match acc {
        Some(acc) => acc + x,
        None => x,
    }
}

fn groups(x: &Mat, n: usize) -> Mat {
    let [t, c] = x.dims();
    x.clone().reshape([t * c / n, n])
}

fn inverse_rms(x: &Mat, eps: f32) -> Mat {
    (x.clone().powf_scalar(2.0).mean_dim(1) + eps).sqrt().recip()
}

/// (T, heads·H) → (heads, T, H), each key/value head repeated for its group.
fn by_head(x: &Mat, heads: usize, repeat: usize) -> Tensor<3> {
    let [t, c] = x.dims();
    let dim = c / heads;
    let x: Tensor<3> = x.clone().reshape([t, heads, dim]).swap_dims(0, 1);
    if repeat == 1 {
        return x;
    }
    x.unsqueeze_dim::<4>(1).expand([heads, repeat, t, dim]).reshape([heads * repeat, t, dim])
}

/// (heads, T, H) → (T, heads·H).
fn by_token(x: Tensor<3>) -> Mat {
    let [h, t, d] = x.dims();
    x.swap_dims(0, 1).reshape([t, h * d])
}

/// Sums the query heads of each group: (N, T, H) → (T, G·H).
fn sum_groups(x: Tensor<3>, kv: usize) -> Mat {
    let [n, t, d] = x.dims();
    let x: Tensor<3> = x.reshape([kv, n / kv, t, d]).sum_dim(1).reshape([kv, t, d]);
    by_token(x)
}

fn scale(dim: usize) -> f32 {
    1.0 / (dim as f32).sqrt()
}

/// Queries taken together: scores are (N, QUERIES, T), never (N, T, T).
const QUERIES: usize = 256;

/// One sequence's keys and values by head, repeated for their groups: (N, T, H).
struct Memory {
    k: Tensor<3>,
    v: Tensor<3>,
}

impl Memory {
    fn of(k: &Mat, v: &Mat, seq: &Range<usize>, heads: Heads) -> Self {
        let by = |m: &Mat| by_head(&rows(m, seq), heads.kv, heads.n / heads.kv);
        Self { k: by(k), v: by(v) }
    }

    /// Scores of the queries from `first` on (counted in the sequence) against every key, the future at −1e30: a value
    /// that every device subtracts without NaN.
    fn scores(&self, q: &Tensor<3>, first: usize, dim: usize) -> Tensor<3> {
        let ([_, m, _], [_, t, _]) = (q.dims(), self.k.dims());
        let s = q.clone().matmul(self.k.clone().swap_dims(1, 2)) * scale(dim);
        let mask: Vec<f32> = (0..m * t).map(|i| if i % t > first + i / t { -1e30 } else { 0.0 }).collect();
        s + upload(mask, [m, t], &q.device()).unsqueeze::<3>()
    }
}

/// Blocks of a sequence's rows.
fn query_blocks(seq: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = seq.end;
    (seq.start..end).step_by(QUERIES).map(move |first| first..(first + QUERIES).min(end))
}

impl Kernels for Reference {
    fn linear(&self, _: Pass, x: &Mat, weights: &[Weight]) -> Vec<Mat> {
        let one = |w: &Weight| {
            let y = x.clone().matmul(wide(w.w).transpose());
            w.bias.map_or(y.clone(), |b| y + b.clone())
        };
        weights.iter().map(one).collect()
    }

    fn linear_input_grad(&self, dx: Option<Mat>, dy: &Mat, w: &Mat) -> Mat {
        plus(dx, dy.clone().matmul(wide(w)))
    }

    fn outer_grad(&self, acc: Option<Mat>, dy: &Mat, x: &Mat, pairs: &[RowPair], scale: f32) -> Mat {
        let one = |p: &RowPair| {
            let right = p.right..p.right + p.left.len();
            rows(dy, &p.left).transpose().matmul(rows(x, &right)) * scale
        };
        let zero = || Tensor::zeros([dy.dims()[1], x.dims()[1]], &dy.device());
        pairs.iter().fold(acc, |acc, p| Some(plus(acc, one(p)))).unwrap_or_else(zero)
    }

    fn row_sum_grad(&self, acc: Option<Mat>, dy: &Mat, ranges: &[Range<usize>]) -> Mat {
        let zero = || Tensor::zeros([1, dy.dims()[1]], &dy.device());
        ranges.iter().fold(acc, |acc, r| Some(plus(acc, rows(dy, r).sum_dim(0)))).unwrap_or_else(zero)
    }

    fn lora_down(&self, x: &Mat, parts: &[LoraRows]) -> Vec<Mat> {
        parts.iter().map(|p| rows(x, &p.rows).matmul(p.a.clone().transpose())).collect()
    }

    fn lora_up(&self, _: Pass, y: Mat, xa: &[Mat], parts: &[LoraRows]) -> Mat {
        let up =
            |y, (p, xa): (&LoraRows, &Mat)| add_rows(y, &p.rows, xa.clone().matmul(p.b.clone().transpose()) * p.scale);
        parts.iter().zip(xa).fold(y, up)
    }

    fn lora_input_grad(&self, dx: Mat, dy: &Mat, parts: &[LoraRows]) -> (Mat, Vec<Mat>) {
        parts.iter().fold((dx, Vec::new()), |(dx, mut kept), p| {
            let dxa = rows(dy, &p.rows).matmul(p.b.clone()) * p.scale;
            let dx = add_rows(dx, &p.rows, dxa.clone().matmul(p.a.clone()));
            kept.push(dxa);
            (dx, kept)
        })
    }

    fn rms_norm(&self, x: &Mat, w: &Mat, eps: f32) -> Mat {
        let g = groups(x, w.dims()[1]);
        let r = inverse_rms(&g, eps);
        (g * r * w.clone()).reshape(x.dims())
    }

    fn rms_norm_grad(&self, dx: Option<Mat>, dy: &Mat, x: &Mat, w: &Mat, eps: f32) -> Mat {
        let n = w.dims()[1];
        let (g, gw) = (groups(x, n), groups(dy, n) * w.clone());
        let r = inverse_rms(&g, eps);
        let c = (gw.clone() * g.clone()).sum_dim(1) * r.clone().powf_scalar(3.0) / n as f32;
        plus(dx, (gw * r - g * c).reshape(x.dims()))
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
        let zero = || Tensor::zeros([1, n], &dy.device());
        let one = |r: &Range<usize>| {
            let g = groups(&rows(x, r), n);
            let inv = inverse_rms(&g, eps);
            (groups(&rows(dy, r), n) * g * inv).sum_dim(0)
        };
        ranges.iter().fold(acc, |acc, r| Some(plus(acc, one(r)))).unwrap_or_else(zero)
    }

    fn rope(&self, x: Mat, table: &RopeTable, positions: &[u32], inverse: bool) -> Mat {
        let ([t, c], [_, half]) = (x.dims(), table.cos.dims());
        let at = ids_tensor(positions, &x.device());
        let angle = |m: &Mat| -> Tensor<3> { m.clone().select(0, at.clone()).reshape([t, 1, half]) };
        let (cos, sin) = (angle(&table.cos), angle(&table.sin) * if inverse { -1.0 } else { 1.0 });
        let x: Tensor<3> = x.reshape([t, c / (2 * half), 2 * half]);
        let (lo, hi) = (x.clone().narrow(2, 0, half), x.narrow(2, half, half));
        let y0 = lo.clone() * cos.clone() - hi.clone() * sin.clone();
        let y1 = hi * cos + lo * sin;
        Tensor::cat(vec![y0, y1], 2).reshape([t, c])
    }

    fn attention(&self, q: &Mat, k: &Mat, v: &Mat, heads: Heads, seqs: &[Range<usize>]) -> Mat {
        let mut o = Vec::new();
        for seq in seqs {
            let memory = Memory::of(k, v, seq, heads);
            for block in query_blocks(seq) {
                let q = by_head(&rows(q, &block), heads.n, 1);
                let p = activation::softmax(memory.scores(&q, block.start - seq.start, heads.dim), 2);
                o.push(by_token(p.matmul(memory.v.clone())));
            }
        }
        Tensor::cat(o, 0)
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
        let mut parts: [Vec<Mat>; 3] = Default::default();
        for seq in seqs {
            let memory = Memory::of(k, v, seq, heads);
            let (mut dk, mut dv) = (memory.k.zeros_like(), memory.v.zeros_like());
            for block in query_blocks(seq) {
                let qs = by_head(&rows(q, &block), heads.n, 1);
                let d_out = by_head(&rows(d_o, &block), heads.n, 1);
                let p = activation::softmax(memory.scores(&qs, block.start - seq.start, heads.dim), 2);
                let dp = d_out.clone().matmul(memory.v.clone().swap_dims(1, 2));
                let delta = (p.clone() * dp.clone()).sum_dim(2);
                let ds = p.clone() * (dp - delta) * scale(heads.dim);
                parts[0].push(by_token(ds.clone().matmul(memory.k.clone())));
                dk = dk + ds.swap_dims(1, 2).matmul(qs);
                dv = dv + p.swap_dims(1, 2).matmul(d_out);
            }
            parts[1].push(sum_groups(dk, heads.kv));
            parts[2].push(sum_groups(dv, heads.kv));
        }
        let [dq, dk, dv] = parts.map(|p| Tensor::cat(p, 0));
        (dq, dk, dv)
    }

    fn attention_extended(&self, q: &Mat, heads: Heads, rows: &[Range<usize>], caches: &[KvSpan]) -> Mat {
        let mut o = Vec::new();
        for (seq, cache) in rows.iter().zip(caches) {
            let memory = Memory::of(cache.k, cache.v, &(0..cache.len), heads);
            for block in query_blocks(seq) {
                let at = cache.len - seq.len() + block.start - seq.start;
                let scores = memory.scores(&by_head(&self::rows(q, &block), heads.n, 1), at, heads.dim);
                o.push(by_token(activation::softmax(scores, 2).matmul(memory.v.clone())));
            }
        }
        Tensor::cat(o, 0)
    }

    fn attention_cached(&self, q: &Mat, heads: Heads, caches: &[Vec<KvSpan>]) -> Mat {
        let repeat = heads.n / heads.kv;
        let one = |(i, spans): (usize, &Vec<KvSpan>)| {
            let join = |pick: fn(&KvSpan) -> Mat| {
                Tensor::cat(spans.iter().filter(|s| s.len > 0).map(|s| pick(s).narrow(0, 0, s.len)).collect(), 0)
            };
            let (k, v) = (join(|s| s.k.clone()), join(|s| s.v.clone()));
            let q = by_head(&rows(q, &(i..i + 1)), heads.n, 1);
            let s = q.matmul(by_head(&k, heads.kv, repeat).swap_dims(1, 2)) * scale(heads.dim);
            by_token(activation::softmax(s, 2).matmul(by_head(&v, heads.kv, repeat)))
        };
        Tensor::cat(caches.iter().enumerate().map(one).collect(), 0)
    }

    fn swiglu(&self, gate: &Mat, up: &Mat) -> Mat {
        activation::sigmoid(gate.clone()) * gate.clone() * up.clone()
    }

    fn swiglu_grad(&self, dy: &Mat, gate: &Mat, up: &Mat) -> (Mat, Mat) {
        let s = activation::sigmoid(gate.clone());
        let silu = gate.clone() * s.clone();
        let d_up = dy.clone() * silu.clone();
        let d_gate = dy.clone() * up.clone() * (s.clone() + silu * (s.neg() + 1.0));
        (d_gate, d_up)
    }

    fn embed(&self, table: &Mat, ids: &[u32]) -> Mat {
        wide(&table.clone().select(0, ids_tensor(ids, &table.device())))
    }

    fn embed_grad(&self, acc: Option<Mat>, dy: &Mat, ids: &[u32], vocab: usize) -> Mat {
        let acc = acc.unwrap_or_else(|| Tensor::zeros([vocab, dy.dims()[1]], &dy.device()));
        acc.select_assign(0, ids_tensor(ids, &dy.device()), dy.clone(), burn::tensor::IndexingUpdateOp::Add)
    }

    fn target_logprobs(&self, logits: &Mat, targets: Targets) -> (Vec<f64>, Vec<f32>) {
        let m = logits.clone().max_dim(1);
        let sums = download((logits.clone() - m.clone()).exp().sum_dim(1));
        let sums = sums.into_iter().zip(download(m));
        let lse: Vec<f64> = sums.map(|(sum, m)| f64::from(m) + f64::from(sum).ln()).collect();
        let [t, v] = logits.dims();
        let at = flat_ids(targets, t, v);
        if at.is_empty() {
            return (lse, Vec::new());
        }
        let flat: Tensor<1> = logits.clone().reshape([t * v]);
        let picked: Mat = flat.select(0, ids_tensor(&at, &logits.device())).unsqueeze();
        let row = (0..t).flat_map(|i| std::iter::repeat_n(i, targets.offsets[i + 1] - targets.offsets[i]));
        let lp = download(picked).into_iter().zip(row).map(|(x, i)| (f64::from(x) - lse[i]) as f32).collect();
        (lse, lp)
    }

    fn target_logprobs_grad(&self, logits: Mat, lse: &[f64], targets: Targets, grads: &[f32]) -> Mat {
        let [t, v] = logits.dims();
        let device = logits.device();
        let sums: Vec<f32> =
            (0..t).map(|i| grads[targets.offsets[i]..targets.offsets[i + 1]].iter().sum::<f32>()).collect();
        let lse = upload(lse.iter().map(|x| *x as f32).collect(), [t, 1], &device);
        let softmax_part = (logits - lse).exp() * upload(sums, [t, 1], &device).neg();
        let at = flat_ids(targets, t, v);
        if at.is_empty() {
            return softmax_part;
        }
        let g = Tensor::<1>::from_data(TensorData::new(grads.to_vec(), [grads.len()]), &device);
        let flat: Tensor<1> = softmax_part.reshape([t * v]);
        let add = burn::tensor::IndexingUpdateOp::Add;
        flat.select_assign(0, ids_tensor(&at, &device), g, add).reshape([t, v])
    }

    fn add(&self, x: Mat, y: &Mat) -> Mat {
        x + y.clone()
    }

    fn write_rows(&self, dst: Mat, at: usize, src: &Mat, range: Range<usize>) -> Mat {
        let [_, n] = dst.dims();
        dst.slice_assign([at..at + range.len(), 0..n], rows(src, &range))
    }

    fn adamw(&self, param: Mat, grad: &Mat, m: Mat, v: Mat, s: &AdamStep) -> (Mat, Mat, Mat) {
        let g = grad.clone() * s.grad_scale;
        let m = m * s.beta1 + g.clone() * (1.0 - s.beta1);
        let v = v * s.beta2 + g.powf_scalar(2.0) * (1.0 - s.beta2);
        let update = m.clone() / s.correction1 / ((v.clone() / s.correction2).sqrt() + s.eps);
        (param * (1.0 - s.learning_rate * s.weight_decay) - update * s.learning_rate, m, v)
    }

    fn sum_of_squares(&self, x: &Mat) -> f64 {
        f64::from(x.clone().powf_scalar(2.0).sum().into_scalar::<f32>())
    }
}
