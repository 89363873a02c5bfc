//! Operations along one dimension, in its order: running sums and products, sorting, the place of an extreme.

use std::cmp::Ordering;

use super::args::Args;
use super::eval::Eval;
use super::ops::{Op, call};
use super::reduce::shared_extreme;
use super::shape::Lines;
use super::tape::{Edge, Factor, Link};
use super::value::{Dtype, Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("cumsum", "input dim dtype", |ev, a| scan(ev, a, |y, x| (y + x, 1.0, 1.0), 0.0)),
    call("cumprod", "input dim dtype", |ev, a| scan(ev, a, |y, x| (y * x, x, y), 1.0)),
    call("logcumsumexp", "input dim dtype", |ev, a| scan(ev, a, log_step, f64::NEG_INFINITY)),
    call("cummax", "input dim", |ev, a| running(ev, a, |x, best| x >= best)),
    call("cummin", "input dim", |ev, a| running(ev, a, |x, best| x <= best)),
    call("max", "input dim keepdim other", |ev, a| extreme(ev, a, f64::NEG_INFINITY, |x, best| x > best)),
    call("min", "input dim keepdim other", |ev, a| extreme(ev, a, f64::INFINITY, |x, best| x < best)),
    call("argmax", "input dim keepdim", |ev, a| place(ev, a, |x, best| x > best)),
    call("argmin", "input dim keepdim", |ev, a| place(ev, a, |x, best| x < best)),
    call("sort", "input dim descending stable", |ev, a| {
        let (x, axis) = line(a, Some(-1))?;
        let order = sorted(ev, &x, axis, a.flag(2, false)?)?;
        ranked(ev, &x, axis, order, x.shape.get(axis).copied().unwrap_or(1), true)
    }),
    call("argsort", "input dim descending stable", |ev, a| {
        let (x, axis) = line(a, Some(-1))?;
        let order = sorted(ev, &x, axis, a.flag(2, false)?)?;
        let found = ranked(ev, &x, axis, order, x.shape.get(axis).copied().unwrap_or(1), true)?;
        Ok(if let Value::Ranked { indices, .. } = found { indices.into() } else { found })
    }),
    call("topk", "input k dim largest sorted", topk),
    call("kthvalue", "input k dim keepdim", |ev, a| {
        let (x, axis) = line_at(a, 2, Some(-1))?;
        let k = a.int(1)?.unwrap_or(0);
        nth(ev, &x, axis, k.saturating_sub(1), a.flag(3, false)?)
    }),
    call("quantile", "input q dim keepdim", quantile),
    call("median", "input dim keepdim", median),
];

/// The first argument and the axis that argument 1 names.
fn line(a: &Args, default: Option<i64>) -> Result<(Tensor, usize)> {
    line_at(a, 1, default)
}

fn line_at(a: &Args, i: usize, default: Option<i64>) -> Result<(Tensor, usize)> {
    let x = a.tensor(0)?;
    match (a.axis(i, x.rank())?, default) {
        (Some(axis), _) => Ok((x, axis)),
        (None, Some(_)) => {
            let last = x.rank().saturating_sub(1);
            Ok((x, last))
        }
        (None, None) => refuse("dim is missing"),
    }
}

/// ln(eʸ + eˣ), and the shares of y and x.
fn log_step(y: f64, x: f64) -> (f64, f64, f64) {
    let most = y.max(x);
    if most == f64::NEG_INFINITY {
        return (most, 0.0, 0.0);
    }
    let sum = most + ((y - most).exp() + (x - most).exp()).ln();
    (sum, (y - sum).exp(), (x - sum).exp())
}

/// y\[j\] from y\[j−1\] and x\[j\] by `step`, which also gives the derivative with respect to each.
fn scan(ev: &mut Eval, a: &Args, step: fn(f64, f64) -> (f64, f64, f64), start: f64) -> Result<Value> {
    let (x, axis) = line(a, None)?;
    let x = match a.dtype(2)? {
        Some(dtype) => ev.cast(&x, dtype)?,
        None => x,
    };
    // Three results a cell, and the steps may be exponentials.
    let n = ev.take(&x.shape, 6)?;
    let lines = Lines::of(&x.shape, axis);
    let (mut data, mut carry, mut own) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    for l in 0..lines.lines {
        let mut y = start;
        for j in 0..lines.len {
            let i = lines.at(l, j);
            (data[i], carry[i], own[i]) = step(y, x.data[i]);
            y = data[i];
        }
    }
    let link = Link::Scan { len: lines.len, stride: lines.stride, carry, own };
    let edges = x.node.map(|parent| Edge { parent, link }).into_iter().collect();
    Ok(ev.made(x.shape.clone(), x.dtype.counted(), data, edges).into())
}

/// The best so far and where it lies.
fn running(ev: &mut Eval, a: &Args, better: fn(f64, f64) -> bool) -> Result<Value> {
    let (x, axis) = line(a, None)?;
    let lines = Lines::of(&x.shape, axis);
    let n = ev.take(&x.shape, 1)?;
    let mut order = vec![0; n];
    for l in 0..lines.lines {
        let mut best = 0;
        for j in 0..lines.len {
            let (now, then) = (x.data[lines.at(l, j)], x.data[lines.at(l, best)]);
            if now.is_nan() || better(now, then) {
                best = j;
            }
            order[lines.at(l, j)] = best;
        }
    }
    ranked(ev, &x, axis, order, lines.len, true)
}

/// Values and indices of a tensor whose axis now has `len` cells; `order` says which each is, in the result's order.
fn ranked(ev: &mut Eval, x: &Tensor, axis: usize, order: Vec<usize>, len: usize, keepdim: bool) -> Result<Value> {
    let mut shape = x.shape.clone();
    if let Some(d) = shape.get_mut(axis) {
        *d = len;
    }
    let (to, source) = (Lines::of(&shape, axis), Lines::of(&x.shape, axis));
    let mut from = vec![0; order.len()];
    for l in 0..to.lines {
        for j in 0..to.len {
            let o = to.at(l, j);
            from[o] = source.at(l, order[o]) as u32;
        }
    }
    if !keepdim && axis < shape.len() {
        shape.remove(axis);
    }
    ev.take(&shape, 0)?;
    let indices = Tensor::constant(shape.clone(), Dtype::I64, order.iter().map(|i| *i as f64).collect());
    Ok(Value::Ranked { values: ev.pick(x, shape, from, 0.0)?, indices })
}

/// Rising, NaN above all.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// For each cell of a sorted line which cell it was. Equal ones keep their order.
fn sorted(ev: &mut Eval, x: &Tensor, axis: usize, descending: bool) -> Result<Vec<usize>> {
    let lines = Lines::of(&x.shape, axis);
    let n = ev.take(&x.shape, 4)?;
    let mut order = vec![0; n];
    for l in 0..lines.lines {
        let value = |j: &usize| x.data[lines.at(l, *j)];
        let mut places: Vec<usize> = (0..lines.len).collect();
        places.sort_by(|a, b| {
            let rising = compare(value(a), value(b));
            if descending { rising.reverse() } else { rising }
        });
        for (j, place) in places.into_iter().enumerate() {
            order[lines.at(l, j)] = place;
        }
    }
    Ok(order)
}

/// Cells `range` of each sorted line.
fn cut(x: &Tensor, axis: usize, order: &[usize], range: std::ops::Range<usize>) -> Vec<usize> {
    let lines = Lines::of(&x.shape, axis);
    let mut shape = x.shape.clone();
    if let Some(d) = shape.get_mut(axis) {
        *d = range.len();
    }
    let to = Lines::of(&shape, axis);
    let mut out = vec![0; to.lines * to.len];
    for l in 0..to.lines {
        for j in 0..to.len {
            out[to.at(l, j)] = order[lines.at(l, range.start + j)];
        }
    }
    out
}

fn topk(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, axis) = line_at(a, 2, Some(-1))?;
    let len = Lines::of(&x.shape, axis).len;
    let k = usize::try_from(a.int(1)?.unwrap_or(-1)).ok().filter(|k| *k <= len);
    let Some(k) = k else { return refuse(format!("k must lie between 0 and {len}, the length of the dimension")) };
    let order = sorted(ev, &x, axis, a.flag(3, true)?)?;
    ranked(ev, &x, axis, cut(&x, axis, &order, 0..k), k, true)
}

/// The n-th smallest of each line, from 0.
fn nth(ev: &mut Eval, x: &Tensor, axis: usize, n: i64, keepdim: bool) -> Result<Value> {
    let len = Lines::of(&x.shape, axis).len;
    let n = usize::try_from(n).ok().filter(|n| *n < len);
    let Some(n) = n else { return refuse(format!("there is no such place in a dimension of length {len}")) };
    let order = sorted(ev, x, axis, false)?;
    ranked(ev, x, axis, cut(x, axis, &order, n..n + 1), 1, keepdim)
}

/// Between the two nearest cells of each sorted line.
fn quantile(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let q = a.float(1, 0.5)?;
    let (x, axis) = match a.axis(2, x.rank())? {
        Some(axis) => (x, axis),
        None => (ev.reshaped(&x, vec![x.len()])?, 0),
    };
    let last = Lines::of(&x.shape, axis).len as f64 - 1.0;
    if !(0.0..=1.0).contains(&q) || x.data.iter().any(|v| v.is_nan()) {
        return refuse(format!("q is {q}; it must lie between 0 and 1, and no value may be NaN"));
    }
    let (place, keepdim) = (q * last, a.flag(3, false)?);
    let low = nth(ev, &x, axis, place.floor() as i64, keepdim)?;
    let high = nth(ev, &x, axis, place.ceil() as i64, keepdim)?;
    let (Value::Ranked { values: low, .. }, Value::Ranked { values: high, .. }) = (low, high) else {
        return refuse("not a tensor");
    };
    let w = place.fract();
    Ok(ev.pointwise([&low, &high], x.dtype, |[l, h]| (l + w * (h - l), [1.0 - w, w]))?.into())
}

fn median(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let Some(axis) = a.axis(1, x.rank())? else {
        let flat = ev.reshaped(&x, vec![x.len()])?;
        let middle = nth(ev, &flat, 0, (x.len() as i64 - 1) / 2, false)?;
        return Ok(if let Value::Ranked { values, .. } = middle { values.into() } else { middle });
    };
    let middle = (Lines::of(&x.shape, axis).len as i64 - 1) / 2;
    nth(ev, &x, axis, middle, a.flag(2, false)?)
}

/// Which cell of each line is best: the first of equals; NaN beats all.
fn best(x: &Tensor, axis: usize, better: fn(f64, f64) -> bool) -> Result<Vec<usize>> {
    let lines = Lines::of(&x.shape, axis);
    if lines.len == 0 {
        return refuse(format!("shape {:?} has no elements to take an extreme of", x.shape));
    }
    let of = |l: usize| {
        (1..lines.len).fold(0, |best, j| {
            let (now, then) = (x.data[lines.at(l, j)], x.data[lines.at(l, best)]);
            if !then.is_nan() && (now.is_nan() || better(now, then)) { j } else { best }
        })
    };
    Ok((0..lines.lines).map(of).collect())
}

fn extreme(ev: &mut Eval, a: &Args, start: f64, better: fn(f64, f64) -> bool) -> Result<Value> {
    let x = a.tensor(0)?;
    let other = [1, 3].into_iter().find(|i| matches!(a.get(*i), Value::Tensor(_)));
    if let Some(i) = other {
        let name = if start < 0.0 { "maximum" } else { "minimum" };
        return super::functional::named(ev, name, &[a.get(0).clone(), a.get(i).clone()]);
    }
    let Some(axis) = a.axis(1, x.rank())? else {
        let all: Vec<usize> = (0..x.rank()).collect();
        return Ok(shared_extreme(ev, &x, &all, false, (start, better), Factor::Sieve)?.into());
    };
    let order = best(&x, axis, better)?;
    ranked(ev, &x, axis, order, 1, a.flag(2, false)?)
}

fn place(ev: &mut Eval, a: &Args, better: fn(f64, f64) -> bool) -> Result<Value> {
    let x = a.tensor(0)?.detached();
    let keepdim = a.flag(2, false)?;
    let (x, axis) = match a.axis(1, x.rank())? {
        Some(axis) => (x, axis),
        None => (ev.reshaped(&x, vec![x.len()])?, 0),
    };
    let order = best(&x, axis, better)?;
    let found = ranked(ev, &x, axis, order, 1, keepdim)?;
    Ok(if let Value::Ranked { indices, .. } = found { indices.into() } else { found })
}
