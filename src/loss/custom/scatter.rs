//! Writing into places of a tensor: the inverse of gather.

use super::args::Args;
use super::eval::Eval;
use super::ops::{Op, call};
use super::select::{along, flat_index, places};
use super::shape::{Lines, strides, walk};
use super::tape::{Edge, Factor, Link};
use super::value::{Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("scatter", "input dim index src value", |ev, a| {
        let (x, axis, index) = target(a)?;
        let source = if a.given(3) { a.operand(3)?.0 } else { a.operand(4)?.0 };
        let source = fitted(ev, &source, &index.shape)?;
        let to = flat_index(ev, &x, axis, &index)?;
        put(ev, &x, &source, to, false)
    }),
    call("scatter_add", "input dim index src", |ev, a| {
        let (x, axis, index) = target(a)?;
        let source = fitted(ev, &a.tensor(3)?, &index.shape)?;
        let to = flat_index(ev, &x, axis, &index)?;
        put(ev, &x, &source, to, true)
    }),
    call("index_add", "input dim index source alpha", |ev, a| {
        let (x, axis, index) = target(a)?;
        let at = places(&index, x.shape[axis])?;
        let source = a.tensor(3)?;
        let mut shape = x.shape.clone();
        shape[axis] = at.len();
        if source.shape != shape || index.rank() > 1 {
            return refuse(format!("source has shape {:?}; it must have {shape:?}", source.shape));
        }
        let alpha = a.float(4, 1.0)?;
        let source = ev.map(&source, source.dtype, |v| (v * alpha, alpha))?;
        let (lines, own) = (Lines::of(&source.shape, axis), Lines::of(&x.shape, axis));
        ev.spend(source.len(), &source.shape)?;
        let mut to = vec![0; source.len()];
        for l in 0..lines.lines {
            for (j, place) in at.iter().enumerate() {
                to[lines.at(l, j)] = own.at(l, *place) as u32;
            }
        }
        put(ev, &x, &source, to, true)
    }),
    call("index_fill", "input dim index value", |ev, a| {
        let (x, axis, index) = target(a)?;
        let at = places(&index, x.shape[axis])?;
        let all: Vec<u32> = (0..x.len() as u32).collect();
        ev.spend(2 * x.len(), &x.shape)?;
        let cells =
            Tensor::constant(x.shape.clone(), super::value::Dtype::I64, all.iter().map(|i| f64::from(*i)).collect());
        let Value::Tensor(hit) = along(ev, &cells, axis, &at)? else { return refuse("not a tensor") };
        let to: Vec<u32> = hit.data.iter().map(|i| *i as u32).collect();
        let value = fitted(ev, &a.operand(3)?.0, &[to.len()])?;
        put(ev, &x, &value, to, false)
    }),
];

fn target(a: &Args) -> Result<(Tensor, usize, Tensor)> {
    let x = a.tensor(0)?;
    match a.axis(1, x.rank())? {
        Some(axis) if axis < x.rank() => Ok((x, axis, a.tensor(2)?)),
        _ => refuse(format!("a dimension of shape {:?} must be named", x.shape)),
    }
}

/// A number written out in `shape`, or the part of a tensor that `shape` covers.
fn fitted(ev: &mut Eval, source: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if source.rank() == 0 {
        return super::layout::broadcasted(ev, source, shape.to_vec());
    }
    if source.rank() != shape.len() || (0..shape.len()).any(|d| shape[d] > source.shape[d]) {
        return refuse(format!("src has shape {:?}; the index has {shape:?}", source.shape));
    }
    let from = walk(shape, &strides(&source.shape), 0);
    ev.pick(source, shape.to_vec(), from, 0.0)
}

/// `source` written to the cells `to` of `x`, or added to them.
fn put(ev: &mut Eval, x: &Tensor, source: &Tensor, to: Vec<u32>, adds: bool) -> Result<Value> {
    let n = ev.take(&x.shape, 2)?;
    let (mut data, mut kept) = (x.data.to_vec(), vec![1.0; n]);
    for (o, v) in to.iter().zip(source.data.iter()) {
        let o = *o as usize;
        (data[o], kept[o]) = if adds { (data[o] + v, 1.0) } else { (x.dtype.cast(*v), 0.0) };
    }
    let own = |parent| Edge { parent, link: Link::Pull { from: None, factor: Factor::Sieve(kept) } };
    let written = |parent| Edge { parent, link: Link::Push { to, factor: Factor::One } };
    let edges = x.node.map(own).into_iter().chain(source.node.map(written)).collect();
    Ok(ev.made(x.shape.clone(), x.dtype, data, edges).into())
}
