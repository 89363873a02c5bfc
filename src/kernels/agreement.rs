//! Each fused kernel against the plain tensor version on random inputs, derivatives included.

use std::ops::Range;

use burn::tensor::Device;

use super::*;

struct Draw(u64);

impl Draw {
    fn mat(&mut self, rows: usize, cols: usize) -> Mat {
        let values = (0..rows * cols).map(|_| self.next()).collect();
        upload(values, [rows, cols], &Device::flex())
    }

    /// Uniform in −1..1.
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn close(a: Mat, b: Mat, what: &str) {
    assert_eq!(a.dims(), b.dims(), "{what}: shape");
    for (i, (x, y)) in download(a).into_iter().zip(download(b)).enumerate() {
        assert!((x - y).abs() <= 2e-5 * (1.0 + y.abs()), "{what}[{i}]: fused {x}, plain {y}");
    }
}

fn close_all(a: Vec<Mat>, b: Vec<Mat>, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: count");
    a.into_iter().zip(b).for_each(|(a, b)| close(a, b, what));
}

const FUSED: &dyn Kernels = &cpu::Cpu;
const PLAIN: &dyn Kernels = &Reference;
const SEQS: [Range<usize>; 3] = [0..1, 1..70, 70..83];
const T: usize = 83;
const HEADS: Heads = Heads { n: 4, kv: 2, dim: 16 };

#[test]
fn linear_layers() {
    let mut d = Draw(1);
    let (x, w, b, dy) = (d.mat(T, 40), d.mat(24, 40), d.mat(1, 24), d.mat(T, 24));
    let both = [Weight { w: &w, bias: Some(&b) }, Weight { w: &w, bias: None }];
    for pass in [Pass::Train, Pass::Sample] {
        close_all(FUSED.linear(pass, &x, &both), PLAIN.linear(pass, &x, &both), "linear");
    }
    let dx = || Some(x.clone());
    close(FUSED.linear_input_grad(dx(), &dy, &w), PLAIN.linear_input_grad(dx(), &dy, &w), "input grad");
    close(FUSED.linear_input_grad(None, &dy, &w), PLAIN.linear_input_grad(None, &dy, &w), "input grad");
    let pairs = [RowPair { left: 0..5, right: 3 }, RowPair { left: 9..40, right: 9 }];
    for acc in [None, Some(w.clone())] {
        let (f, p) = (FUSED.outer_grad(acc.clone(), &dy, &x, &pairs, 0.7), PLAIN.outer_grad(acc, &dy, &x, &pairs, 0.7));
        close(f, p, "outer grad");
    }
    close(FUSED.row_sum_grad(None, &dy, &SEQS), PLAIN.row_sum_grad(None, &dy, &SEQS), "row sum");
}

#[test]
fn weights_stored_as_bf16() {
    let mut d = Draw(10);
    for k in [40, 48] {
        let (x, dy, w) = (d.mat(T, k), d.mat(T, 24), d.mat(24, k).cast(burn::tensor::DType::BF16));
        let weight = [Weight { w: &w, bias: None }];
        for pass in [Pass::Train, Pass::Sample] {
            close_all(FUSED.linear(pass, &x, &weight), PLAIN.linear(pass, &x, &weight), "linear");
        }
        let back = |kernels: &dyn Kernels| kernels.linear_input_grad(None, &dy, &w);
        close(back(FUSED), back(PLAIN), "input grad");
        let embed = |kernels: &dyn Kernels| kernels.embed(&w, &[3, 0, 23]);
        close(embed(FUSED), embed(PLAIN), "embed");
    }
}

#[test]
fn adapters_of_different_ranks() {
    let mut d = Draw(2);
    let (x, y) = (d.mat(T, 40), d.mat(T, 24));
    let ab = [(d.mat(3, 40), d.mat(24, 3)), (d.mat(16, 40), d.mat(24, 16))];
    let part = |i: usize, rows| LoraRows { rows, a: &ab[i].0, b: &ab[i].1, scale: 1.5 };
    let parts = [part(0, 2..11), part(1, 30..T)];
    for pass in [Pass::Train, Pass::Sample] {
        let (kf, kp) = (FUSED.lora_down(&x, &parts), PLAIN.lora_down(&x, &parts));
        let up = |k: &dyn Kernels| k.lora_up(pass, y.clone(), &kp, &parts);
        close(up(FUSED), up(PLAIN), "lora");
        close_all(kf, kp, "x·A");
    }
    let (f, p) = (FUSED.lora_input_grad(x.clone(), &y, &parts), PLAIN.lora_input_grad(x.clone(), &y, &parts));
    close(f.0, p.0, "lora input grad");
    close_all(f.1, p.1, "grad of x·A");
}

#[test]
fn normalisation() {
    let mut d = Draw(3);
    for n in [40, 8] {
        let (x, dy, w, acc) = (d.mat(T, 40), d.mat(T, 40), d.mat(1, n), d.mat(T, 40));
        close(FUSED.rms_norm(&x, &w, 1e-6), PLAIN.rms_norm(&x, &w, 1e-6), "rms norm");
        let g = |k: &dyn Kernels| k.rms_norm_grad(Some(acc.clone()), &dy, &x, &w, 1e-6);
        close(g(FUSED), g(PLAIN), "rms norm grad");
        let g = |k: &dyn Kernels| k.rms_norm_weight_grad(None, &dy, &x, n, 1e-6, &SEQS);
        close(g(FUSED), g(PLAIN), "rms norm weight grad");
    }
}

#[test]
fn rotation_and_its_inverse() {
    let mut d = Draw(4);
    let (x, table) = (d.mat(5, 64), RopeTable { cos: d.mat(9, 8), sin: d.mat(9, 8) });
    for inverse in [false, true] {
        let r = |k: &dyn Kernels| k.rope(x.clone(), &table, &[0, 8, 3, 3, 1], inverse);
        close(r(FUSED), r(PLAIN), "rope");
    }
}

#[test]
fn attention_and_its_derivatives() {
    let mut d = Draw(5);
    let (q, k, v, d_o) = (d.mat(T, 64), d.mat(T, 32), d.mat(T, 32), d.mat(T, 64));
    let forward = |x: &dyn Kernels| x.attention(&q, &k, &v, HEADS, &SEQS);
    close(forward(FUSED), forward(PLAIN), "attention");
    let g = |x: &dyn Kernels| x.attention_grad(&d_o, &q, &k, &v, HEADS, &SEQS);
    let (f, p) = (g(FUSED), g(PLAIN));
    close(f.0, p.0, "dq");
    close(f.1, p.1, "dk");
    close(f.2, p.2, "dv");
}

#[test]
fn attention_over_more_queries_than_a_block() {
    let mut d = Draw(11);
    let (q, k, v, d_o) = (d.mat(300, 64), d.mat(300, 32), d.mat(300, 32), d.mat(300, 64));
    let seqs = [0..280, 280..300];
    let forward = |x: &dyn Kernels| x.attention(&q, &k, &v, HEADS, &seqs);
    close(forward(FUSED), forward(PLAIN), "attention");
    let g = |x: &dyn Kernels| x.attention_grad(&d_o, &q, &k, &v, HEADS, &seqs);
    let (f, p) = (g(FUSED), g(PLAIN));
    close_all(vec![f.0, f.1, f.2], vec![p.0, p.1, p.2], "dq, dk, dv");
}

#[test]
fn cached_attention_equals_the_last_row_of_full_attention() {
    let mut d = Draw(6);
    let (q, k, v) = (d.mat(20, 64), d.mat(20, 32), d.mat(20, 32));
    let all = 0..20;
    let o = PLAIN.attention(&q, &k, &v, HEADS, std::slice::from_ref(&all));
    let (k2, v2) = (k.clone().narrow(0, 13, 7), v.clone().narrow(0, 13, 7));
    let spans = vec![KvSpan { k: &k, v: &v, len: 13 }, KvSpan { k: &k2, v: &v2, len: 7 }];
    let last = q.narrow(0, 19, 1);
    for kernels in [FUSED, PLAIN] {
        close(
            kernels.attention_cached(&last, HEADS, std::slice::from_ref(&spans)),
            o.clone().narrow(0, 19, 1),
            "cached attention",
        );
    }
}

#[test]
fn a_sequence_attended_in_pieces_gives_the_bits_of_the_whole() {
    let mut d = Draw(12);
    let (q, k, v) = (d.mat(700, 64), d.mat(700, 32), d.mat(700, 32));
    let all = 0..700;
    for (kernels, exact) in [(FUSED, true), (PLAIN, false)] {
        let whole = kernels.attention(&q, &k, &v, HEADS, std::slice::from_ref(&all));
        for cuts in [vec![0, 64, 640, 700], vec![0, 1, 65, 333, 699, 700]] {
            let pieces = cuts.windows(2).map(|w| {
                // Beside a piece of another sequence.
                let (mine, other) = (q.clone().narrow(0, w[0], w[1] - w[0]), q.clone().narrow(0, 0, 5));
                let rows = [0..5, 5..5 + w[1] - w[0]];
                let spans = [KvSpan { k: &k, v: &v, len: 5 }, KvSpan { k: &k, v: &v, len: w[1] }];
                let o = kernels.attention_extended(&Mat::cat(vec![other, mine], 0), HEADS, &rows, &spans);
                o.narrow(0, 5, w[1] - w[0])
            });
            let joined = Mat::cat(pieces.collect(), 0);
            if exact {
                let bits = |m: Mat| download(m).into_iter().map(f32::to_bits).collect::<Vec<_>>();
                assert!(bits(joined) == bits(whole.clone()), "cut at {cuts:?}");
            } else {
                close(joined, whole.clone(), "attention in pieces");
            }
        }
    }
}

#[test]
fn feed_forward_and_embedding() {
    let mut d = Draw(7);
    let (g, u, dy) = (d.mat(T, 24), d.mat(T, 24), d.mat(T, 24));
    close(FUSED.swiglu(&g, &u), PLAIN.swiglu(&g, &u), "swiglu");
    let (f, p) = (FUSED.swiglu_grad(&dy, &g, &u), PLAIN.swiglu_grad(&dy, &g, &u));
    close(f.0, p.0, "gate grad");
    close(f.1, p.1, "up grad");
    let ids: Vec<u32> = (0..T as u32).map(|i| i * 7 % 11).collect();
    let table = d.mat(11, 24);
    close(FUSED.embed(&table, &ids), PLAIN.embed(&table, &ids), "embed");
    let grad = |k: &dyn Kernels| k.embed_grad(Some(table.clone()), &dy, &ids, 11);
    close(grad(FUSED), grad(PLAIN), "embed grad");
}

#[test]
fn target_logprobs_and_their_derivative() {
    let mut d = Draw(8);
    let logits = d.mat(4, 50) * 5.0;
    let (offsets, ids) = ([0, 1, 1, 4, 5], [3, 0, 49, 7, 7]);
    let targets = Targets { offsets: &offsets, ids: &ids };
    let ((lf, f), (lp, p)) = (FUSED.target_logprobs(&logits, targets), PLAIN.target_logprobs(&logits, targets));
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    for (a, b) in lf.iter().chain(&wide(&f)).zip(lp.iter().chain(&wide(&p))) {
        assert!((a - b).abs() < 1e-5, "{a} vs {b}");
    }
    let grads = [1.0, -0.5, 2.0, 0.25, -3.0];
    let g = |k: &dyn Kernels| k.target_logprobs_grad(logits.clone(), &lf, targets, &grads);
    close(g(FUSED), g(PLAIN), "logits grad");
}

#[test]
fn optimiser_and_in_place_updates() {
    let mut d = Draw(9);
    let (p, g, m, v) = (d.mat(30, 7), d.mat(30, 7), d.mat(30, 7), d.mat(30, 7).abs());
    let step = AdamStep {
        learning_rate: 0.01,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        correction1: 0.19,
        correction2: 0.1,
        grad_scale: 0.5,
    };
    let run = |k: &dyn Kernels| k.adamw(p.clone(), &g, m.clone(), v.clone(), &step);
    let (f, r) = (run(FUSED), run(PLAIN));
    close(f.0, r.0, "parameter");
    close(f.1, r.1, "first moment");
    close(f.2, r.2, "second moment");
    assert!((FUSED.sum_of_squares(&g) - PLAIN.sum_of_squares(&g)).abs() < 1e-3);
    let before = download(p.clone());
    let changed = FUSED.write_rows(p.clone(), 2, &g, 5..9);
    close(changed, PLAIN.write_rows(p.clone(), 2, &g, 5..9), "write rows");
    assert_eq!(download(p), before, "a shared matrix must not change");
}
