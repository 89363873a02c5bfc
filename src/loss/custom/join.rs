//! Several tensors into one, and one into several.

use super::args::Args;
use super::eval::Eval;
use super::layout::broadcasted;
use super::ops::{Op, call};
use super::select::{along, without};
use super::shape::{Lines, axis, broadcast};
use super::tape::{Edge, Factor, Link};
use super::value::{Tensor, Value, promote, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("cat", "tensors dim", |ev, a| {
        let parts = a.tensors(0)?;
        let d = axis(a.int(1)?.unwrap_or(0), parts[0].rank())?;
        Ok(cat(ev, &parts, d)?.into())
    }),
    call("stack", "tensors dim", |ev, a| {
        let parts = a.tensors(0)?;
        let d = axis(a.int(1)?.unwrap_or(0), parts[0].rank() + 1)?;
        Ok(stack(ev, &parts, d)?.into())
    }),
    call("hstack", "tensors", |ev, a| {
        let parts = at_least_1d(ev, a.tensors(0)?)?;
        let d = usize::from(parts[0].rank() > 1);
        Ok(cat(ev, &parts, d)?.into())
    }),
    call("vstack", "tensors", |ev, a| {
        let parts = at_least_1d(ev, a.tensors(0)?)?;
        if parts[0].rank() == 1 { Ok(stack(ev, &parts, 0)?.into()) } else { Ok(cat(ev, &parts, 0)?.into()) }
    }),
    call("split", "tensor split_size_or_sections dim", split),
    call("chunk", "input chunks dim", chunk),
    call("unbind", "input dim", unbind),
    call("broadcast_tensors", "*tensors", |ev, a| {
        let parts = a.tensors(0)?;
        let shape = parts.iter().try_fold(Vec::new(), |shape, t| broadcast(&shape, &t.shape))?;
        let all = parts.iter().map(|t| broadcasted(ev, t, shape.clone()).map(Value::from));
        Ok(Value::list(all.collect::<Result<_>>()?))
    }),
    call("diff", "input n dim", diff),
];

fn at_least_1d(ev: &mut Eval, parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
    parts.into_iter().map(|t| if t.rank() == 0 { ev.reshaped(&t, vec![1]) } else { Ok(t) }).collect()
}

pub fn cat(ev: &mut Eval, parts: &[Tensor], d: usize) -> Result<Tensor> {
    let first = &parts[0];
    if first.rank() == 0 {
        return refuse("tensors of rank 0 cannot be joined along a dimension; stack them");
    }
    let fits = |t: &Tensor| t.rank() == first.rank() && (0..t.rank()).all(|i| i == d || t.shape[i] == first.shape[i]);
    if let Some(odd) = parts.iter().find(|t| !fits(t)) {
        return refuse(format!("shapes {:?} and {:?} do not fit side by side", first.shape, odd.shape));
    }
    let dtype = promote(parts.iter().map(|t| (t, false)));
    let mut shape = first.shape.clone();
    shape[d] = parts.iter().map(|t| t.shape[d]).sum();
    let n = ev.take(&shape, 1)?;
    let lines = Lines::of(&shape, d);
    let (mut data, mut edges, mut start) = (vec![0.0; n], Vec::new(), 0);
    for part in parts {
        let own = Lines::of(&part.shape, d);
        let mut to = vec![0; part.len()];
        for l in 0..own.lines {
            for j in 0..own.len {
                let (i, o) = (own.at(l, j), lines.at(l, start + j));
                data[o] = part.data[i];
                to[i] = o as u32;
            }
        }
        start += own.len;
        edges.extend(part.node.map(|parent| Edge { parent, link: Link::Push { to, factor: Factor::One } }));
    }
    Ok(ev.made(shape, dtype, data, edges))
}

fn stack(ev: &mut Eval, parts: &[Tensor], d: usize) -> Result<Tensor> {
    let mut raised = Vec::with_capacity(parts.len());
    for t in parts {
        if t.shape != parts[0].shape {
            return refuse(format!("shapes {:?} and {:?} do not stack", parts[0].shape, t.shape));
        }
        let mut shape = t.shape.clone();
        shape.insert(d, 1);
        raised.push(ev.reshaped(t, shape)?);
    }
    cat(ev, &raised, d)
}

fn on_axis(a: &Args, i: usize) -> Result<(Tensor, usize)> {
    let x = a.tensor(0)?;
    let d = a.axis(i, x.rank())?.unwrap_or(0);
    if x.rank() == 0 { refuse("a tensor of rank 0 cannot be split") } else { Ok((x, d)) }
}

fn pieces(ev: &mut Eval, x: &Tensor, d: usize, sizes: &[usize]) -> Result<Value> {
    let mut start = 0;
    let mut out = Vec::with_capacity(sizes.len());
    for n in sizes {
        out.push(along(ev, x, d, &(start..start + n).collect::<Vec<_>>())?);
        start += n;
    }
    Ok(Value::list(out))
}

/// Pieces of `size` cells; the last may be smaller.
fn even(ev: &mut Eval, x: &Tensor, d: usize, size: usize) -> Result<Value> {
    let len = x.shape[d];
    let starts: Vec<usize> = (0..len.max(1)).step_by(size.max(1)).collect();
    pieces(ev, x, d, &starts.iter().map(|s| size.min(len - s)).collect::<Vec<_>>())
}

fn split(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, d) = on_axis(a, 2)?;
    let sizes = a.required_ints(1)?;
    if let Value::Int(n) = a.get(1)
        && *n > 0
    {
        return even(ev, &x, d, *n as usize);
    }
    let total = sizes.iter().fold(0i64, |n, s| n.saturating_add(*s));
    if sizes.iter().any(|n| *n < 0) || total != x.shape[d] as i64 {
        return refuse(format!("split sizes {sizes:?} must add up to {}, the dimension's length", x.shape[d]));
    }
    pieces(ev, &x, d, &sizes.iter().map(|n| *n as usize).collect::<Vec<_>>())
}

fn chunk(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, d) = on_axis(a, 2)?;
    match a.int(1)?.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0) {
        Some(chunks) => even(ev, &x, d, x.shape[d].div_ceil(chunks)),
        None => refuse("chunks must be a positive number"),
    }
}

fn unbind(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, d) = on_axis(a, 1)?;
    let mut out = Vec::with_capacity(x.shape[d]);
    for j in 0..x.shape[d] {
        let part = along(ev, &x, d, &[j])?;
        out.push(without(ev, part, d)?);
    }
    Ok(Value::list(out))
}

fn diff(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let (n, d) = (a.int(1)?.unwrap_or(1), a.axis(2, x.rank())?.unwrap_or(x.rank().saturating_sub(1)));
    if x.rank() == 0 || !(0..=16).contains(&n) {
        return refuse(format!(
            "diff of order {n} of shape {:?}: there must be a dimension, and n at most 16",
            x.shape
        ));
    }
    let mut out = x;
    for _ in 0..n {
        let len = out.shape[d];
        let after = along(ev, &out, d, &(1..len).collect::<Vec<_>>())?;
        let before = along(ev, &out, d, &(0..len.saturating_sub(1)).collect::<Vec<_>>())?;
        let (Value::Tensor(after), Value::Tensor(before)) = (after, before) else { return refuse("not a tensor") };
        out = super::binary::add(ev, &after, &before, -1.0)?;
    }
    Ok(out.into())
}
