//! Softmax and its like, made of simpler operations.

use super::args::Args;
use super::binary::{add, mul, over};
use super::eval::Eval;
use super::ops::{self, Op, call};
use super::reduce::{log_sum_exp, norm, sum};
use super::unary::sigmoid;
use super::value::{Dtype, Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("log_softmax", "input dim dtype", |ev, a| Ok(log_softmax(ev, a, 1.0)?.into())),
    call("softmax", "input dim dtype", |ev, a| softmax(ev, a, 1.0)),
    call("softmin", "input dim dtype", |ev, a| softmax(ev, a, -1.0)),
    call("normalize", "input p dim eps", normalize),
    call("cosine_similarity", "x1 x2 dim eps", cosine_similarity),
    call("pairwise_distance", "x1 x2 p eps keepdim", pairwise_distance),
    call("glu", "input dim", glu),
];

/// The operation of this name on two arguments.
pub fn named(ev: &mut Eval, name: &str, values: &[Value; 2]) -> Result<Value> {
    let found = ops::find(super::graph::NodeKind::Method, name);
    let Some(found) = found else { return refuse(format!("{name} is not allowed")) };
    ops::run(ev, found.op, &Args { params: &["input", "other"], values })
}

fn log_softmax(ev: &mut Eval, a: &Args, sign: f64) -> Result<Tensor> {
    let x = a.tensor(0)?;
    let dtype = a.dtype(2)?.unwrap_or(x.dtype);
    if !dtype.is_float() {
        return refuse(format!("softmax takes floats, not {dtype:?}"));
    }
    let x = ev.cast(&x, dtype)?;
    let x = if sign < 0.0 { ev.map(&x, dtype, |v| (-v, -1.0))? } else { x };
    // Without a dimension torch takes the first of rank 0, 1 and 3, else the second.
    let axis = a.axis(1, x.rank())?.unwrap_or(usize::from(matches!(x.rank(), 2 | 4)));
    let axes: Vec<usize> = [axis].into_iter().filter(|d| *d < x.rank()).collect();
    let total = log_sum_exp(ev, &x, &axes, true)?;
    add(ev, &x, &total, -1.0)
}

fn softmax(ev: &mut Eval, a: &Args, sign: f64) -> Result<Value> {
    let logs = log_softmax(ev, a, sign)?;
    Ok(ev.map(&logs, logs.dtype, |v| (v.exp(), v.exp()))?.into())
}

/// `x`, or `limit` where that is more.
fn at_least(ev: &mut Eval, x: &Tensor, limit: f64) -> Result<Tensor> {
    ev.sieve(x, x.dtype, |v| if v < limit { (limit, 0.0) } else { (v, 1.0) })
}

fn normalize(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let axes = if a.given(2) { a.axes(2, x.rank())? } else { vec![1] };
    if axes.iter().any(|d| *d >= x.rank()) {
        return refuse(format!("dim 1 is out of range for a tensor of rank {}", x.rank()));
    }
    let size = norm(ev, &x, a.float(1, 2.0)?, &axes, true)?;
    let size = at_least(ev, &size, a.float(3, 1e-12)?)?;
    Ok(over(ev, &x, &size)?.into())
}

fn cosine_similarity(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, y) = (a.tensor(0)?, a.tensor(1)?);
    let rank = x.rank().max(y.rank());
    let axis = a.axis(2, rank)?.unwrap_or(1);
    if axis >= rank || !x.dtype.is_float() || !y.dtype.is_float() {
        return refuse(format!("cosine_similarity takes floats and a dimension of {rank}"));
    }
    let eps = a.float(3, 1e-8)?;
    let shape = super::shape::broadcast(&x.shape, &y.shape)?;
    let mut sides = Vec::with_capacity(2);
    for t in [&x, &y] {
        let t = super::layout::broadcasted(ev, t, shape.clone())?;
        let size = norm(ev, &t, 2.0, &[axis], true)?;
        let size = at_least(ev, &size, eps)?;
        sides.push(over(ev, &t, &size)?);
    }
    let cells = mul(ev, &sides[0], &sides[1])?;
    Ok(sum(ev, &cells, &[axis], false)?.into())
}

fn pairwise_distance(ev: &mut Eval, a: &Args) -> Result<Value> {
    let gap = add(ev, &a.tensor(0)?, &a.tensor(1)?, -1.0)?;
    let eps = Tensor::scalar(Dtype::F32, a.float(3, 1e-6)?);
    let gap = add(ev, &gap, &eps, 1.0)?;
    let Some(last) = gap.rank().checked_sub(1) else { return refuse("vectors are needed") };
    Ok(norm(ev, &gap, a.float(2, 2.0)?, &[last], a.flag(4, false)?)?.into())
}

fn glu(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let axis = a.axis(1, x.rank())?.unwrap_or(x.rank().saturating_sub(1));
    let len = x.shape.get(axis).copied().unwrap_or(1);
    if x.rank() == 0 || !len.is_multiple_of(2) {
        return refuse(format!("glu needs a dimension of even length, not {len}"));
    }
    let half = |ev: &mut Eval, at: std::ops::Range<usize>| {
        super::select::along(ev, &x, axis, &at.collect::<Vec<_>>()).and_then(|v| match v {
            Value::Tensor(t) => Ok(t),
            other => refuse(format!("{} is no tensor", other.kind())),
        })
    };
    let (left, right) = (half(ev, 0..len / 2)?, half(ev, len / 2..len)?);
    let gate = ev.map(&right, right.dtype.float(), |v| (sigmoid(v), sigmoid(v) * sigmoid(-v)))?;
    Ok(mul(ev, &left, &gate)?.into())
}
