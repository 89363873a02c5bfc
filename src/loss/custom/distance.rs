//! The losses of torch.nn.functional over two tensors, cell by cell and then reduced.

use super::args::Args;
use super::binary::mul;
use super::eval::Eval;
use super::ops::{Op, call, reduction};
use super::reduce::{mean, scale, sum};
use super::unary::{sigmoid, sign, softplus};
use super::value::{Tensor, Value, promote, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("mse_loss", "input target size_average reduce reduction weight", |ev, a| {
        let cells = pair(ev, a, |d| (d * d, 2.0 * d))?;
        reduced(ev, a, cells, 4, Some(5))
    }),
    call("l1_loss", "input target size_average reduce reduction weight", |ev, a| {
        let cells = pair(ev, a, |d| (d.abs(), sign(d)))?;
        reduced(ev, a, cells, 4, Some(5))
    }),
    call("smooth_l1_loss", "input target size_average reduce reduction beta", |ev, a| {
        let beta = a.float(5, 1.0)?;
        let curve =
            |d: f64| if d.abs() < beta { (0.5 * d * d / beta, d / beta) } else { (d.abs() - 0.5 * beta, sign(d)) };
        let cells = pair(ev, a, curve)?;
        reduced(ev, a, cells, 4, None)
    }),
    call("huber_loss", "input target reduction delta weight", |ev, a| {
        let delta = a.float(3, 1.0)?;
        let far = |d: f64| (delta * (d.abs() - 0.5 * delta), delta * sign(d));
        let cells = pair(ev, a, |d| if d.abs() <= delta { (0.5 * d * d, d) } else { far(d) })?;
        reduced(ev, a, cells, 2, Some(4))
    }),
    call("soft_margin_loss", "input target size_average reduce reduction", |ev, a| {
        let f = |[x, y]: [f64; 2]| (softplus(-x * y), [-y * sigmoid(-x * y), -x * sigmoid(-x * y)]);
        let cells = cells(ev, a, f)?;
        reduced(ev, a, cells, 4, None)
    }),
    call("kl_div", "input target size_average reduce reduction log_target", kl_div),
    call("binary_cross_entropy", "input target weight size_average reduce reduction", |ev, a| {
        // The logarithms stop at −100, as torch has it.
        let cut = |x: f64| if x.ln() < -100.0 { (-100.0, 0.0) } else { (x.ln(), x.recip()) };
        let f = |[x, y]: [f64; 2]| {
            let ((p, dp), (q, dq)) = (cut(x), cut(1.0 - x));
            (-(y * p + (1.0 - y) * q), [(1.0 - y) * dq - y * dp, q - p])
        };
        let cells = cells(ev, a, f)?;
        reduced(ev, a, cells, 5, Some(2))
    }),
    call(
        "binary_cross_entropy_with_logits",
        "input target weight size_average reduce reduction pos_weight",
        with_logits,
    ),
    call("poisson_nll_loss", "input target log_input full size_average eps reduce reduction", poisson),
];

/// A function of both tensors' difference.
fn pair(ev: &mut Eval, a: &Args, f: impl Fn(f64) -> (f64, f64)) -> Result<Tensor> {
    cells(ev, a, |[x, y]| {
        let (value, d) = f(x - y);
        (value, [d, -d])
    })
}

fn cells(ev: &mut Eval, a: &Args, f: impl Fn([f64; 2]) -> (f64, [f64; 2])) -> Result<Tensor> {
    let (x, y) = (a.tensor(0)?, a.tensor(1)?);
    let dtype = promote([(&x, false), (&y, false)]);
    if !dtype.is_float() {
        return refuse(format!("a loss takes floats, not {dtype:?}"));
    }
    ev.pointwise([&x, &y], dtype, f)
}

/// Weighted by argument `weight` and reduced as argument `how` says.
fn reduced(ev: &mut Eval, a: &Args, cells: Tensor, how: usize, weight: Option<usize>) -> Result<Value> {
    let weight = weight.map_or(Ok(None), |i| a.optional_tensor(i))?;
    let cells = match weight {
        Some(w) => mul(ev, &cells, &w)?,
        None => cells,
    };
    let all: Vec<usize> = (0..cells.rank()).collect();
    Ok(match reduction(a.text(how)?)? {
        "mean" => mean(ev, &cells, &all, false)?,
        "sum" => sum(ev, &cells, &all, false)?,
        _ => cells,
    }
    .into())
}

fn kl_div(ev: &mut Eval, a: &Args) -> Result<Value> {
    let in_logs = a.flag(5, false)?;
    let f = move |[x, y]: [f64; 2]| {
        if in_logs {
            return (y.exp() * (y - x), [-y.exp(), y.exp() * (y - x + 1.0)]);
        }
        let log = if y == 0.0 { 0.0 } else { y * y.ln() };
        (log - y * x, [-y, y.ln() + 1.0 - x])
    };
    let cells = cells(ev, a, f)?;
    if a.text(4)? == Some("batchmean") {
        let all: Vec<usize> = (0..cells.rank()).collect();
        let batch = cells.shape.first().copied().unwrap_or(1);
        let total = sum(ev, &cells, &all, false)?;
        return Ok(scale(ev, &total, (batch as f64).recip())?.into());
    }
    reduced(ev, a, cells, 4, None)
}

fn with_logits(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, y) = (a.tensor(0)?, a.tensor(1)?);
    let p = a.optional_tensor(6)?.unwrap_or_else(|| Tensor::scalar(x.dtype, 1.0));
    let f = |[x, y, p]: [f64; 3]| {
        let (yes, no) = (softplus(-x), softplus(x));
        let value = p * y * yes + (1.0 - y) * no;
        (value, [(1.0 - y) * sigmoid(x) - p * y * sigmoid(-x), p * yes - no, y * yes])
    };
    let dtype = promote([(&x, false), (&y, false)]).float();
    let cells = ev.pointwise([&x, &y, &p], dtype, f)?;
    reduced(ev, a, cells, 5, Some(2))
}

fn poisson(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (in_logs, eps) = (a.flag(2, true)?, a.float(5, 1e-8)?);
    if a.flag(3, false)? {
        return refuse("full must be False");
    }
    let f = |[x, y]: [f64; 2]| {
        if in_logs {
            (x.exp() - y * x, [x.exp() - y, -x])
        } else {
            (x - y * (x + eps).ln(), [1.0 - y / (x + eps), -(x + eps).ln()])
        }
    };
    let cells = cells(ev, a, f)?;
    reduced(ev, a, cells, 7, None)
}
