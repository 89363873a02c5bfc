//! One decoder block, forward and backward, for packed passes of many adapters or of one full-trained run.

use crate::kernels::{Heads, Kernels, LoraRows, Mat, Pass, RopeTable};
use crate::model::batch::{Batch, local_left, local_right, same_rows};
use crate::model::grads::Grads;
use crate::model::params::{LayerParam, Param, Proj, Site};
use crate::model::weights::BaseWeights;

/// What a layer needs of its surroundings.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub kernels: &'static dyn Kernels,
    pub weights: &'a BaseWeights,
    pub rope: &'a RopeTable,
    pub pass: Pass,
    pub batch: &'a Batch<'a>,
}

/// Activations the backward pass needs. What is cheap (norms, SwiGLU) is computed again.
pub struct Tape {
    /// Input (T, D).
    x: Mat,
    /// Before norm and rotation; only where the decoder normalises q and k.
    raw_qk: Option<(Mat, Mat)>,
    q: Mat,
    k: Mat,
    v: Mat,
    o: Mat,
    /// After attention (T, D).
    mid: Mat,
    gate: Mat,
    up: Mat,
    /// `x · Aᵀ` of each adapter at each projection.
    xa: [Vec<Mat>; Proj::COUNT],
}

/// Rotated queries and keys, and values.
pub struct Qkv {
    pub q: Mat,
    pub k: Mat,
    pub v: Mat,
    raw_qk: Option<(Mat, Mat)>,
    xa: [Vec<Mat>; 3],
}

impl Context<'_> {
    fn eps(&self) -> f32 {
        self.weights.config.rms_norm_eps as f32
    }

    pub fn heads(&self) -> Heads {
        let c = &self.weights.config;
        Heads { n: c.num_heads, kv: c.num_kv_heads, dim: c.head_dim }
    }

    fn norm(&self, x: &Mat, layer: usize, p: LayerParam) -> Mat {
        self.kernels.rms_norm(x, self.weights.expect(Param::Layer(layer, p)), self.eps())
    }

    fn site(&self, layer: usize, p: Proj) -> usize {
        Site::Layer(layer, p).index(&self.weights.config)
    }

    /// Several projections of one input, adapters included; also each one's `x · Aᵀ`.
    fn project<const P: usize>(&self, x: &Mat, layer: usize, projs: [Proj; P]) -> [(Mat, Vec<Mat>); P] {
        let weights = projs.map(|p| self.weights.projection(layer, p));
        let mut ys = self.kernels.linear(self.pass, x, &weights).into_iter();
        projs.map(|p| {
            let y = ys.next().expect("one output per projection");
            let (parts, _) = self.batch.lora(self.site(layer, p));
            self.adapted(y, x, &parts)
        })
    }

    /// y with the adapters' parts added, and each one's `x · Aᵀ`.
    pub fn adapted(&self, y: Mat, x: &Mat, parts: &[LoraRows]) -> (Mat, Vec<Mat>) {
        if parts.is_empty() {
            return (y, Vec::new());
        }
        let xa = self.kernels.lora_down(x, parts);
        (self.kernels.lora_up(self.pass, y, &xa, parts), xa)
    }

    /// From a layer's input to rotated queries and keys, and values.
    pub fn qkv(&self, x: &Mat, layer: usize) -> Qkv {
        let h = self.norm(x, layer, LayerParam::InputNorm);
        let [(q, xq), (k, xk), (v, xv)] = self.project(&h, layer, [Proj::Q, Proj::K, Proj::V]);
        let normed = self
            .weights
            .config
            .qk_norm
            .then(|| (self.norm(&q, layer, LayerParam::QNorm), self.norm(&k, layer, LayerParam::KNorm)));
        let (raw_qk, (q, k)) = match normed {
            Some(normed) => (Some((q, k)), normed),
            None => (None, (q, k)),
        };
        let turn = |m| self.kernels.rope(m, self.rope, &self.batch.positions, false);
        Qkv { q: turn(q), k: turn(k), v, raw_qk, xa: [xq, xk, xv] }
    }

    /// The output projection and its residual: → (T, D) and `o · Aᵀ`.
    fn attention_out(&self, x: Mat, o: &Mat, layer: usize) -> (Mat, Vec<Mat>) {
        let [(y, xa)] = self.project(o, layer, [Proj::O]);
        (self.kernels.add(y, &x), xa)
    }

    /// The feed-forward half without a tape.
    pub fn finish(&self, x: Mat, o: &Mat, layer: usize) -> Mat {
        let (mid, _) = self.attention_out(x, o, layer);
        let h = self.norm(&mid, layer, LayerParam::PostNorm);
        let [(gate, _), (up, _)] = self.project(&h, layer, [Proj::Gate, Proj::Up]);
        let [(y, _)] = self.project(&self.kernels.swiglu(&gate, &up), layer, [Proj::Down]);
        self.kernels.add(y, &mid)
    }

    /// A whole layer over packed sequences: → output (T, D) and what [`Self::backward`] needs.
    pub fn forward(&self, x: Mat, layer: usize) -> (Mat, Tape) {
        let Qkv { q, k, v, raw_qk, xa: [xq, xk, xv] } = self.qkv(&x, layer);
        let o = self.kernels.attention(&q, &k, &v, self.heads(), &self.batch.seqs());
        let (mid, xo) = self.attention_out(x.clone(), &o, layer);
        let h = self.norm(&mid, layer, LayerParam::PostNorm);
        let [(gate, xg), (up, xu)] = self.project(&h, layer, [Proj::Gate, Proj::Up]);
        drop(h);
        let [(y, xd)] = self.project(&self.kernels.swiglu(&gate, &up), layer, [Proj::Down]);
        let y = self.kernels.add(y, &mid);
        (y, Tape { x, raw_qk, q, k, v, o, mid, gate, up, xa: [xq, xk, xv, xo, xg, xu, xd] })
    }

    /// From the output's gradient to the input's; parameter gradients go to each group's accumulators.
    ///
    /// `full`: the groups are requests of one run whose base weights are trained. `input_grad`: whether anybody below needs the result.
    pub fn backward(
        &self,
        dy: Mat,
        tape: Tape,
        layer: usize,
        grads: &mut [Grads],
        full: bool,
        input_grad: bool,
    ) -> Mat {
        let mut b = Backward { c: self, layer, grads, full };
        let Tape { x, raw_qk, q, k, v, o, mid, gate, up, xa: [xq, xk, xv, xo, xg, xu, xd] } = tape;

        let m = self.kernels.swiglu(&gate, &up);
        let dm = b.project(None, &dy, &m, Proj::Down, &xd, true);
        let (dg, du) = self.kernels.swiglu_grad(&dm, &gate, &up);
        drop((m, dm, gate, up));
        let h = self.norm(&mid, layer, LayerParam::PostNorm);
        let dh = b.project(None, &dg, &h, Proj::Gate, &xg, true);
        let dh = b.project(Some(dh), &du, &h, Proj::Up, &xu, true);
        drop((h, dg, du));
        let d_mid = b.norm(Some(dy), &dh, &mid, LayerParam::PostNorm);

        let d_o = b.project(None, &d_mid, &o, Proj::O, &xo, true);
        let (dq, dk, dv) = self.kernels.attention_grad(&d_o, &q, &k, &v, self.heads(), &self.batch.seqs());
        drop((o, q, k, v));
        let turn = |m| self.kernels.rope(m, self.rope, &self.batch.positions, true);
        let (mut dq, mut dk) = (turn(dq), turn(dk));
        if let Some((rq, rk)) = raw_qk {
            dq = b.norm(None, &dq, &rq, LayerParam::QNorm);
            dk = b.norm(None, &dk, &rk, LayerParam::KNorm);
        }
        let h = self.norm(&x, layer, LayerParam::InputNorm);
        let dh = b.project(None, &dq, &h, Proj::Q, &xq, input_grad);
        let dh = b.project(Some(dh), &dk, &h, Proj::K, &xk, input_grad);
        let dh = b.project(Some(dh), &dv, &h, Proj::V, &xv, input_grad);
        if !input_grad {
            return d_mid;
        }
        b.norm(Some(d_mid), &dh, &x, LayerParam::InputNorm)
    }
}

/// A layer's backward pass and where its gradients go.
struct Backward<'a, 'b> {
    c: &'a Context<'a>,
    layer: usize,
    grads: &'b mut [Grads],
    full: bool,
}

impl Backward<'_, '_> {
    /// `dx + dy · W` with the adapters' parts; the projection's parameter gradients on the way.
    fn project(&mut self, dx: Option<Mat>, dy: &Mat, x: &Mat, p: Proj, xa: &[Mat], input_grad: bool) -> Mat {
        let (k, w) = (self.c.kernels, self.c.weights.projection(self.layer, p));
        let mut dx = match (input_grad, dx) {
            (true, dx) => k.linear_input_grad(dx, dy, w.w),
            (false, Some(dx)) => dx,
            // Nobody reads it; adapters still need a place for their part.
            (false, None) => Mat::zeros(x.dims(), &x.device()),
        };
        let (parts, owners) = self.c.batch.lora(self.c.site(self.layer, p));
        if !parts.is_empty() {
            let (new_dx, dxa) = k.lora_input_grad(dx, dy, &parts);
            dx = new_dx;
            for (i, owner) in owners.into_iter().enumerate() {
                let group = &self.c.batch.groups[owner];
                let adapter = group.adapter.expect("it has a part here");
                let at = adapter.position(self.c.site(self.layer, p)).expect("it has a part here");
                let first = group.rows.start;
                let grads = &mut self.grads[owner];
                grads.outer(k, at, &dxa[i], x, &local_left(&group.seqs, first), 1.0);
                grads.outer(k, at + 1, dy, &xa[i], &local_right(&group.seqs, first), parts[i].scale);
            }
        }
        if self.full {
            let at = |lp| self.c.weights.position(Param::Layer(self.layer, lp));
            let (weight, bias) = (at(p.param()).expect("a projection"), p.bias(&self.c.weights.config).and_then(at));
            for (group, grads) in self.c.batch.groups.iter().zip(self.grads.iter_mut()) {
                grads.outer(k, weight, dy, x, &same_rows(&group.seqs), 1.0);
                if let Some(bias) = bias {
                    grads.row_sum(k, bias, dy, &group.seqs);
                }
            }
        }
        dx
    }

    fn norm(&mut self, dx: Option<Mat>, dy: &Mat, x: &Mat, p: LayerParam) -> Mat {
        let param = Param::Layer(self.layer, p);
        let (k, w, eps) = (self.c.kernels, self.c.weights.expect(param), self.c.eps());
        if self.full {
            let at = self.c.weights.position(param).expect("a norm of this decoder");
            let n = w.dims()[1];
            for (group, grads) in self.c.batch.groups.iter().zip(self.grads.iter_mut()) {
                grads.update(at, |acc| k.rms_norm_weight_grad(acc, dy, x, n, eps, &group.seqs));
            }
        }
        k.rms_norm_grad(dx, dy, x, w, eps)
    }
}
