//! Reductions over dimensions: sums, means, extremes, norms, spreads. Ties of an extreme are shared as torch shares them.

use super::args::Args;
use super::binary::{add, over};
use super::eval::Eval;
use super::ops::{Op, call};
use super::shape::{strides, walk};
use super::tape::{Edge, Factor, Link};
use super::unary::{flag, sign, test};
use super::value::{Dtype, Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("sum", "input dim keepdim dtype", |ev, a| {
        let x = taken(ev, a, 3)?;
        Ok(sum(ev, &x, &a.axes(1, x.rank())?, a.flag(2, false)?)?.into())
    }),
    call("nansum", "input dim keepdim dtype", |ev, a| {
        let x = taken(ev, a, 3)?;
        let x = ev.map(&x, x.dtype, |v| if v.is_nan() { (0.0, 0.0) } else { (v, 1.0) })?;
        Ok(sum(ev, &x, &a.axes(1, x.rank())?, a.flag(2, false)?)?.into())
    }),
    call("mean", "input dim keepdim dtype", |ev, a| {
        let x = taken(ev, a, 3)?;
        Ok(mean(ev, &x, &a.axes(1, x.rank())?, a.flag(2, false)?)?.into())
    }),
    call("nanmean", "input dim keepdim dtype", nanmean),
    call("prod", "input dim keepdim dtype", prod),
    call("amax", "input dim keepdim", |ev, a| even(ev, a, f64::NEG_INFINITY, |x, best| x > best)),
    call("amin", "input dim keepdim", |ev, a| even(ev, a, f64::INFINITY, |x, best| x < best)),
    call("any", "input dim keepdim", |ev, a| counted(ev, a, |n, _| n > 0.0)),
    call("all", "input dim keepdim", |ev, a| counted(ev, a, |n, of| n == of)),
    call("count_nonzero", "input dim", |ev, a| {
        let x = a.tensor(0)?;
        let x = test(ev, &x, |v| v != 0.0)?;
        Ok(sum(ev, &x, &a.axes(1, x.rank())?, false)?.into())
    }),
    call("logsumexp", "input dim keepdim", |ev, a| {
        let x = a.tensor(0)?;
        Ok(log_sum_exp(ev, &x, &a.axes(1, x.rank())?, a.flag(2, false)?)?.into())
    }),
    call("var", "input dim unbiased keepdim correction", |ev, a| Ok(spread(ev, a)?.0.into())),
    call("std", "input dim unbiased keepdim correction", |ev, a| {
        let v = spread(ev, a)?.0;
        Ok(root(ev, &v)?.into())
    }),
    call("var_mean", "input dim unbiased keepdim correction", |ev, a| {
        let (v, m) = spread(ev, a)?;
        Ok(Value::list(vec![v.into(), m.into()]))
    }),
    call("std_mean", "input dim unbiased keepdim correction", |ev, a| {
        let (v, m) = spread(ev, a)?;
        Ok(Value::list(vec![root(ev, &v)?.into(), m.into()]))
    }),
    call("norm", "input p dim keepdim dtype", |ev, a| norm_of(ev, a, 4)),
    call("dist", "input other p", |ev, a| {
        let gap = add(ev, &a.tensor(0)?, &a.tensor(1)?, -1.0)?;
        let all: Vec<usize> = (0..gap.rank()).collect();
        Ok(norm(ev, &gap, a.float(2, 2.0)?, &all, false)?.into())
    }),
    call("vector_norm", "input ord dim keepdim dtype", |ev, a| norm_of(ev, a, 4)),
];

/// Which cell of the result each cell goes into.
struct Fold {
    shape: Vec<usize>,
    to: Vec<u32>,
    /// Cells of the result.
    count: usize,
}

fn fold(ev: &mut Eval, x: &Tensor, axes: &[usize], keepdim: bool) -> Result<Fold> {
    let kept: Vec<usize> = (0..x.rank()).map(|d| if axes.contains(&d) { 1 } else { x.shape[d] }).collect();
    let own = strides(&kept);
    let steps: Vec<isize> = (0..x.rank()).map(|d| if axes.contains(&d) { 0 } else { own[d] }).collect();
    ev.spend(2 * x.len(), &x.shape)?;
    let to = walk(&x.shape, &steps, 0);
    let shape = match keepdim {
        true => kept,
        false => (0..x.rank()).filter(|d| !axes.contains(d)).map(|d| x.shape[d]).collect(),
    };
    let count = ev.take(&shape, 0)?;
    Ok(Fold { shape, to, count })
}

impl Fold {
    fn push(self, ev: &mut Eval, x: &Tensor, dtype: Dtype, data: Vec<f64>, factor: Factor) -> Tensor {
        let edge = |parent| Edge { parent, link: Link::Push { to: self.to, factor } };
        let edges = x.node.filter(|_| dtype.is_float()).map(edge).into_iter().collect();
        ev.made(self.shape, dtype, data, edges)
    }

    /// The cells that go into each cell of the result.
    fn members(&self) -> Vec<Vec<usize>> {
        let mut members = vec![Vec::new(); self.count];
        for (i, o) in self.to.iter().enumerate() {
            members[*o as usize].push(i);
        }
        members
    }
}

pub fn sum(ev: &mut Eval, x: &Tensor, axes: &[usize], keepdim: bool) -> Result<Tensor> {
    let fold = fold(ev, x, axes, keepdim)?;
    let mut data = vec![0.0; fold.count];
    for (v, o) in x.data.iter().zip(&fold.to) {
        data[*o as usize] += v;
    }
    Ok(fold.push(ev, x, x.dtype.counted(), data, Factor::One))
}

pub fn mean(ev: &mut Eval, x: &Tensor, axes: &[usize], keepdim: bool) -> Result<Tensor> {
    if !x.dtype.is_float() {
        return refuse(format!("mean takes floats, not {:?}; use .float() first", x.dtype));
    }
    let n: usize = axes.iter().map(|d| x.shape[*d]).product();
    let total = sum(ev, x, axes, keepdim)?;
    scale(ev, &total, (n as f64).recip())
}

/// `x` times a number.
pub fn scale(ev: &mut Eval, x: &Tensor, by: f64) -> Result<Tensor> {
    let by = if by.is_infinite() { f64::NAN } else { by };
    ev.map(x, x.dtype, |v| (v * by, by))
}

pub fn log_sum_exp(ev: &mut Eval, x: &Tensor, axes: &[usize], keepdim: bool) -> Result<Tensor> {
    let fold = fold(ev, x, axes, keepdim)?;
    let mut most = vec![f64::NEG_INFINITY; fold.count];
    for (v, o) in x.data.iter().zip(&fold.to) {
        most[*o as usize] = most[*o as usize].max(*v);
    }
    let shift: Vec<f64> = most.iter().map(|m| if m.is_finite() { *m } else { 0.0 }).collect();
    let mut sums = vec![0.0; fold.count];
    for (v, o) in x.data.iter().zip(&fold.to) {
        sums[*o as usize] += (v - shift[*o as usize]).exp();
    }
    let data: Vec<f64> = sums.iter().zip(&shift).map(|(s, m)| s.ln() + m).collect();
    let share = |(v, o): (&f64, &u32)| if *v == f64::NEG_INFINITY { 0.0 } else { (v - data[*o as usize]).exp() };
    let factor = Factor::Each(x.data.iter().zip(&fold.to).map(share).collect());
    Ok(fold.push(ev, x, x.dtype.float(), data, factor))
}

/// √x, whose derivative at 0 counts as 0: so torch has it for norms and standard deviations.
pub fn root(ev: &mut Eval, x: &Tensor) -> Result<Tensor> {
    ev.sieve(x, x.dtype, |v| (v.sqrt(), if v == 0.0 { 0.0 } else { 0.5 / v.sqrt() }))
}

/// The p-norm over these axes.
pub fn norm(ev: &mut Eval, x: &Tensor, p: f64, axes: &[usize], keepdim: bool) -> Result<Tensor> {
    let dtype = x.dtype.float();
    if p == 2.0 {
        let squares = ev.map(x, dtype, |v| (v * v, 2.0 * v))?;
        let total = sum(ev, &squares, axes, keepdim)?;
        return root(ev, &total);
    }
    if p == 0.0 {
        let count = ev.map(x, dtype, |v| (flag(v != 0.0), 0.0))?;
        return sum(ev, &count, axes, keepdim);
    }
    let sizes = ev.map(x, dtype, |v| (v.abs(), sign(v)))?;
    if p.is_infinite() {
        let (start, better): (f64, fn(f64, f64) -> bool) =
            if p > 0.0 { (0.0, |x, b| x > b) } else { (f64::INFINITY, |x, b| x < b) };
        return shared_extreme(ev, &sizes, axes, keepdim, (start, better), Factor::Each);
    }
    if p == 1.0 {
        return sum(ev, &sizes, axes, keepdim);
    }
    let powers = ev.sieve(&sizes, dtype, |v| (v.powf(p), if v == 0.0 { 0.0 } else { p * v.powf(p - 1.0) }))?;
    let total = sum(ev, &powers, axes, keepdim)?;
    ev.sieve(&total, dtype, |v| (v.powf(p.recip()), if v == 0.0 { 0.0 } else { v.powf(p.recip() - 1.0) / p }))
}

/// The extreme over these axes; cells that share it share the derivative evenly. `factor`: torch multiplies the others' with
/// zero over named axes, and leaves them out over all.
pub fn shared_extreme(
    ev: &mut Eval,
    x: &Tensor,
    axes: &[usize],
    keepdim: bool,
    (start, better): (f64, fn(f64, f64) -> bool),
    factor: fn(Vec<f64>) -> Factor,
) -> Result<Tensor> {
    let fold = fold(ev, x, axes, keepdim)?;
    if x.data.is_empty() && fold.count > 0 {
        return refuse(format!("shape {:?} has no elements to take an extreme of", x.shape));
    }
    let mut best = vec![start; fold.count];
    for (v, o) in x.data.iter().zip(&fold.to) {
        let b = &mut best[*o as usize];
        if v.is_nan() || (!b.is_nan() && better(*v, *b)) {
            *b = *v;
        }
    }
    let is_best = |v: f64, o: u32| v == best[o as usize] || (v.is_nan() && best[o as usize].is_nan());
    let mut ties = vec![0.0; fold.count];
    for (v, o) in x.data.iter().zip(&fold.to) {
        ties[*o as usize] += flag(is_best(*v, *o));
    }
    let share = |(v, o): (&f64, &u32)| flag(is_best(*v, *o)) / ties[*o as usize];
    let shares = x.data.iter().zip(&fold.to).map(share).collect();
    Ok(fold.push(ev, x, x.dtype, best, factor(shares)))
}

/// The first argument, in the dtype that argument `i` names.
fn taken(ev: &mut Eval, a: &Args, i: usize) -> Result<Tensor> {
    let x = a.tensor(0)?;
    match a.dtype(i)? {
        Some(dtype) => ev.cast(&x, dtype),
        None => Ok(x),
    }
}

fn nanmean(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = taken(ev, a, 3)?;
    let (axes, keepdim) = (a.axes(1, x.rank())?, a.flag(2, false)?);
    let filled = ev.map(&x, x.dtype, |v| if v.is_nan() { (0.0, 0.0) } else { (v, 1.0) })?;
    let known = ev.map(&x.detached(), Dtype::F32, |v| (flag(!v.is_nan()), 0.0))?;
    let (total, n) = (sum(ev, &filled, &axes, keepdim)?, sum(ev, &known, &axes, keepdim)?);
    Ok(over(ev, &total, &n)?.into())
}

fn prod(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = taken(ev, a, 3)?;
    let fold = fold(ev, &x, &a.axes(1, x.rank())?, a.flag(2, false)?)?;
    let (mut data, mut others) = (vec![1.0; fold.count], vec![1.0; x.len()]);
    for (o, members) in fold.members().iter().enumerate() {
        for i in members {
            others[*i] = data[o];
            data[o] *= x.data[*i];
        }
        let mut after = 1.0;
        for i in members.iter().rev() {
            others[*i] *= after;
            after *= x.data[*i];
        }
    }
    Ok(fold.push(ev, &x, x.dtype.counted(), data, Factor::Each(others)).into())
}

fn even(ev: &mut Eval, a: &Args, start: f64, better: fn(f64, f64) -> bool) -> Result<Value> {
    let x = a.tensor(0)?;
    Ok(shared_extreme(ev, &x, &a.axes(1, x.rank())?, a.flag(2, false)?, (start, better), Factor::Each)?.into())
}

/// A bool from how many cells are true, and of how many.
fn counted(ev: &mut Eval, a: &Args, f: fn(f64, f64) -> bool) -> Result<Value> {
    let x = a.tensor(0)?;
    let axes = a.axes(1, x.rank())?;
    let of: usize = axes.iter().map(|d| x.shape[*d]).product();
    let x = test(ev, &x, |v| v != 0.0)?;
    let n = sum(ev, &x, &axes, a.flag(2, false)?)?;
    Ok(test(ev, &n, |n| f(n, of as f64))?.into())
}

/// Variance and mean.
fn spread(ev: &mut Eval, a: &Args) -> Result<(Tensor, Tensor)> {
    let x = a.tensor(0)?;
    // `x.var(False)`: the only argument is `unbiased`.
    let bare = matches!(a.get(1), Value::Bool(_));
    let axes = if bare { (0..x.rank()).collect() } else { a.axes(1, x.rank())? };
    let unbiased = a.flag(if bare { 1 } else { 2 }, true)?;
    let (keepdim, correction) = (a.flag(3, false)?, a.float(4, flag(unbiased))?);
    let center = mean(ev, &x, &axes, true)?;
    let off = add(ev, &x, &center, -1.0)?;
    let squares = ev.map(&off, x.dtype, |v| (v * v, 2.0 * v))?;
    let total = sum(ev, &squares, &axes, keepdim)?;
    let n = axes.iter().map(|d| x.shape[*d]).product::<usize>() as f64;
    let by = (n - correction).max(0.0).recip();
    Ok((scale(ev, &total, by)?, mean(ev, &x, &axes, keepdim)?))
}

fn norm_of(ev: &mut Eval, a: &Args, dtype: usize) -> Result<Value> {
    let x = taken(ev, a, dtype)?;
    let p = match a.get(1) {
        Value::Text(s) if &**s == "fro" => 2.0,
        _ => a.float(1, 2.0)?,
    };
    Ok(norm(ev, &x, p, &a.axes(2, x.rank())?, a.flag(3, false)?)?.into())
}
