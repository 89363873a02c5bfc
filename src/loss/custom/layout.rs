//! Other arrangements of the same values: shapes, orders of dimensions, copies, casts, and what a tensor says of itself.

use super::args::Args;
use super::eval::Eval;
use super::ops::{Op, call};
use super::shape::{axis, broadcast, count, spread, strides, walk};
use super::value::{Dtype, Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("reshape", "input *shape", |ev, a| {
        // `x.view(dtype)` would read the bits anew.
        let x = a.tensor(0)?;
        let shape = resolved(&x, &a.required_ints(1)?)?;
        Ok(ev.reshaped(&x, shape)?.into())
    }),
    call("view", "input *shape", |ev, a| {
        let x = a.tensor(0)?;
        let shape = resolved(&x, &a.required_ints(1)?)?;
        Ok(ev.reshaped(&x, shape)?.into())
    }),
    call("view_as", "input other", like),
    call("reshape_as", "input other", like),
    call("flatten", "input start_dim end_dim", flatten),
    call("ravel", "input", flatten_all),
    call("unflatten", "input dim sizes", unflatten),
    call("squeeze", "input dim", squeeze),
    call("unsqueeze", "input dim", unsqueeze),
    call("transpose", "input dim0 dim1", |ev, a| {
        let x = a.tensor(0)?;
        let dims = [a.axis(1, x.rank())?, a.axis(2, x.rank())?];
        let [Some(p), Some(q)] = dims else { return refuse("transpose needs two dimensions") };
        swapped(ev, &x, p, q)
    }),
    call("t", "input", |ev, a| {
        let x = a.tensor(0)?;
        if x.rank() < 2 { Ok(x.into()) } else { swapped(ev, &x, 0, 1) }
    }),
    call("permute", "input *dims", |ev, a| {
        let x = a.tensor(0)?;
        let dims = a.required_ints(1)?.iter().map(|d| axis(*d, x.rank())).collect::<Result<Vec<_>>>()?;
        Ok(permuted(ev, &x, &dims)?.into())
    }),
    call("movedim", "input source destination", movedim),
    call("expand", "input *size", |ev, a| expand(ev, &a.tensor(0)?, &a.required_ints(1)?)),
    call("broadcast_to", "input *size", |ev, a| expand(ev, &a.tensor(0)?, &a.required_ints(1)?)),
    call("expand_as", "input other", |ev, a| {
        let shape: Vec<i64> = a.tensor(1)?.shape.iter().map(|n| *n as i64).collect();
        expand(ev, &a.tensor(0)?, &shape)
    }),
    call("flip", "input *dims", flip),
    call("roll", "input shifts dims", roll),
    call("repeat", "input *repeats", tile),
    call("tile", "input *dims", tile),
    call("repeat_interleave", "input repeats dim", repeat_interleave),
    call("detach", "input", |_, a| Ok(a.tensor(0)?.detached().into())),
    call("clone", "input", |_, a| Ok(a.tensor(0)?.into())),
    call("contiguous", "input", |_, a| Ok(a.tensor(0)?.into())),
    call("cpu", "input", |_, a| Ok(a.tensor(0)?.into())),
    call("requires_grad", "input mode", |_, a| Ok(a.tensor(0)?.into())),
    call("float", "input", |ev, a| Ok(ev.cast(&a.tensor(0)?, Dtype::F32)?.into())),
    call("double", "input", |ev, a| Ok(ev.cast(&a.tensor(0)?, Dtype::F64)?.into())),
    call("long", "input", |ev, a| Ok(ev.cast(&a.tensor(0)?, Dtype::I64)?.into())),
    call("int", "input", |ev, a| Ok(ev.cast(&a.tensor(0)?, Dtype::I64)?.into())),
    call("bool", "input", |ev, a| Ok(ev.cast(&a.tensor(0)?, Dtype::Bool)?.into())),
    call("type_as", "input other", |ev, a| Ok(ev.cast(&a.tensor(0)?, a.tensor(1)?.dtype)?.into())),
    call("type", "input dtype", |ev, a| match a.dtype(1)? {
        Some(dtype) => Ok(ev.cast(&a.tensor(0)?, dtype)?.into()),
        None => refuse("dtype is missing"),
    }),
    call("to", "input *to dtype other", to),
    call("size", "input dim", |_, a| {
        let x = a.tensor(0)?;
        match a.axis(1, x.rank())? {
            Some(d) if d < x.rank() => Ok(Value::Int(x.shape[d] as i64)),
            Some(_) => refuse("a tensor of rank 0 has no dimensions"),
            None => Ok(Value::ints(x.shape)),
        }
    }),
    call("dim", "input", |_, a| Ok(Value::Int(a.tensor(0)?.rank() as i64))),
    call("numel", "input", |_, a| Ok(Value::Int(a.tensor(0)?.len() as i64))),
    call("is_floating_point", "input", |_, a| Ok(Value::Bool(a.tensor(0)?.dtype.is_float()))),
    call("getattr", "input name", attribute),
];

/// A shape for the tensor's cells, in which one size may be −1.
fn resolved(x: &Tensor, sizes: &[i64]) -> Result<Vec<usize>> {
    let open = sizes.iter().filter(|n| **n == -1).count();
    let known = sizes.iter().filter(|n| **n >= 0).fold(1usize, |n, d| n.saturating_mul(*d as usize));
    let fits = match open {
        0 => known == x.len(),
        1 => known > 0 && x.len().is_multiple_of(known),
        _ => false,
    };
    if !fits || sizes.iter().any(|n| *n < -1) {
        return refuse(format!("shape {sizes:?} does not fit {} elements", x.len()));
    }
    Ok(sizes.iter().map(|n| if *n == -1 { x.len() / known } else { *n as usize }).collect())
}

fn like(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, shape) = (a.tensor(0)?, a.tensor(1)?.shape);
    if count(&shape) != x.len() {
        return refuse(format!("shape {shape:?} does not fit {} elements", x.len()));
    }
    Ok(ev.reshaped(&x, shape)?.into())
}

fn flatten_all(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    Ok(ev.reshaped(&x, vec![x.len()])?.into())
}

fn flatten(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    if x.rank() == 0 {
        return flatten_all(ev, a);
    }
    let (first, last) = (a.axis(1, x.rank())?.unwrap_or(0), a.axis(2, x.rank())?.unwrap_or(x.rank() - 1));
    if first > last {
        return refuse(format!("start_dim {first} lies behind end_dim {last}"));
    }
    let middle = count(&x.shape[first..=last]);
    let shape = [&x.shape[..first], &[middle], &x.shape[last + 1..]].concat();
    Ok(ev.reshaped(&x, shape)?.into())
}

fn unflatten(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let Some(d) = a.axis(1, x.rank())?.filter(|d| *d < x.rank()) else { return refuse("dim is missing") };
    let part = Tensor::constant(vec![x.shape[d]], Dtype::Bool, vec![0.0; x.shape[d]]);
    let inner = resolved(&part, &a.required_ints(2)?)?;
    let shape = [&x.shape[..d], &inner[..], &x.shape[d + 1..]].concat();
    Ok(ev.reshaped(&x, shape)?.into())
}

fn squeeze(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let axes = a.axes(1, x.rank())?;
    let kept = (0..x.rank()).filter(|d| x.shape[*d] != 1 || !axes.contains(d)).map(|d| x.shape[d]).collect();
    Ok(ev.reshaped(&x, kept)?.into())
}

fn unsqueeze(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let Some(d) = a.axis(1, x.rank() + 1)? else { return refuse("dim is missing") };
    let mut shape = x.shape.clone();
    shape.insert(d, 1);
    Ok(ev.reshaped(&x, shape)?.into())
}

pub fn permuted(ev: &mut Eval, x: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let mut seen = dims.to_vec();
    seen.sort_unstable();
    if seen != (0..x.rank()).collect::<Vec<_>>() {
        return refuse(format!("dims {dims:?} must name each of the {} dimensions once", x.rank()));
    }
    let own = strides(&x.shape);
    let shape: Vec<usize> = dims.iter().map(|d| x.shape[*d]).collect();
    let steps: Vec<isize> = dims.iter().map(|d| own[*d]).collect();
    ev.spend(x.len(), &shape)?;
    let from = walk(&shape, &steps, 0);
    ev.pick(x, shape, from, 0.0)
}

fn swapped(ev: &mut Eval, x: &Tensor, p: usize, q: usize) -> Result<Value> {
    let mut dims: Vec<usize> = (0..x.rank()).collect();
    if x.rank() > 0 {
        dims.swap(p, q);
    }
    Ok(permuted(ev, x, &dims)?.into())
}

fn movedim(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let read = |i| a.required_ints(i)?.iter().map(|d| axis(*d, x.rank())).collect::<Result<Vec<_>>>();
    let (from, to) = (read(1)?, read(2)?);
    if from.len() != to.len() {
        return refuse("source and destination must name as many dimensions");
    }
    let mut order: Vec<Option<usize>> = vec![None; x.rank()];
    for (f, t) in from.iter().zip(&to).filter(|_| x.rank() > 0) {
        order[*t] = Some(*f);
    }
    let mut rest = (0..x.rank()).filter(|d| !from.contains(d));
    let dims: Vec<usize> = order.into_iter().filter_map(|d| d.or_else(|| rest.next())).collect();
    Ok(permuted(ev, &x, &dims)?.into())
}

/// To a larger shape that it broadcasts to; −1 keeps a size.
fn expand(ev: &mut Eval, x: &Tensor, sizes: &[i64]) -> Result<Value> {
    let lead = sizes.len().checked_sub(x.rank());
    let Some(lead) = lead else { return refuse(format!("size {sizes:?} has fewer dimensions than {:?}", x.shape)) };
    let size = |(d, n): (usize, &i64)| match *n {
        -1 if d >= lead => Ok(x.shape[d - lead]),
        n if n >= 0 => Ok(n as usize),
        n => refuse(format!("size {n} in {sizes:?} is not allowed")),
    };
    let shape = sizes.iter().enumerate().map(size).collect::<Result<Vec<_>>>()?;
    if broadcast(&x.shape, &shape)? != shape {
        return refuse(format!("shape {:?} does not expand to {shape:?}", x.shape));
    }
    broadcasted(ev, x, shape).map(Value::from)
}

/// `x` written out in a shape that it broadcasts to.
pub fn broadcasted(ev: &mut Eval, x: &Tensor, shape: Vec<usize>) -> Result<Tensor> {
    ev.take(&shape, 0)?;
    match spread(&x.shape, &shape) {
        None => Ok(x.clone()),
        Some(from) => ev.pick(x, shape, from, 0.0),
    }
}

fn flip(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let mut steps = strides(&x.shape);
    let mut first = 0;
    for d in a.required_ints(1)? {
        let d = axis(d, x.rank())?;
        if d < x.rank() && x.shape[d] > 0 {
            first += steps[d] * (x.shape[d] as isize - 1);
            steps[d] = -steps[d];
        }
    }
    ev.spend(x.len(), &x.shape)?;
    let from = walk(&x.shape, &steps, first);
    Ok(ev.pick(&x, x.shape.clone(), from, 0.0)?.into())
}

fn roll(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let shifts = a.required_ints(1)?;
    let Some(dims) = a.ints(2)? else {
        let flat = ev.reshaped(&x, vec![x.len()])?;
        let rolled = rolled(ev, &flat, 0, shifts.first().copied().unwrap_or(0))?;
        return Ok(ev.reshaped(&rolled, x.shape.clone())?.into());
    };
    if dims.len() != shifts.len() {
        return refuse("shifts and dims must be as many");
    }
    let mut out = x.clone();
    for (shift, d) in shifts.iter().zip(dims) {
        out = rolled(ev, &out, axis(d, x.rank())?, *shift)?;
    }
    Ok(out.into())
}

fn rolled(ev: &mut Eval, x: &Tensor, axis: usize, shift: i64) -> Result<Tensor> {
    let lines = super::shape::Lines::of(&x.shape, axis);
    let shift = shift.rem_euclid(lines.len.max(1) as i64) as usize;
    ev.spend(x.len(), &x.shape)?;
    let mut from = vec![0; x.len()];
    for l in 0..lines.lines {
        for j in 0..lines.len {
            let source = (j + lines.len - shift) % lines.len;
            from[lines.at(l, j)] = lines.at(l, source) as u32;
        }
    }
    ev.pick(x, x.shape.clone(), from, 0.0)
}

fn tile(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let counts = a.required_ints(1)?;
    if counts.iter().any(|n| *n < 0) {
        return refuse(format!("repeats {counts:?} must not be negative"));
    }
    let rank = x.rank().max(counts.len());
    let times = |d: usize| if d + counts.len() < rank { 1 } else { counts[d + counts.len() - rank] as usize };
    let size = |d: usize| if d + x.rank() < rank { 1 } else { x.shape[d + x.rank() - rank] };
    let shape: Vec<usize> = (0..rank).map(|d| size(d).saturating_mul(times(d))).collect();
    ev.take(&shape, 1)?;
    // Each dimension as (times, size): the first steps nowhere.
    let sizes: Vec<usize> = (0..rank).map(size).collect();
    let own = strides(&sizes);
    let split: Vec<usize> = (0..rank).flat_map(|d| [times(d), size(d)]).collect();
    let steps: Vec<isize> = (0..rank).flat_map(|d| [0, own[d]]).collect();
    let from = walk(&split, &steps, 0);
    Ok(ev.pick(&x, shape, from, 0.0)?.into())
}

fn repeat_interleave(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let (x, axis) = match a.axis(2, x.rank())? {
        Some(axis) if x.rank() > 0 => (x, axis),
        _ => (ev.reshaped(&x, vec![x.len()])?, 0),
    };
    let len = x.shape[axis];
    let counts = match a.get(1) {
        Value::Tensor(t) => t.ints("repeats")?,
        _ => vec![a.int(1)?.unwrap_or(1)],
    };
    if counts.iter().any(|n| *n < 0) || (counts.len() != 1 && counts.len() != len) {
        return refuse(format!("repeats must be one number or {len}, none negative"));
    }
    let times = |j: usize| counts[if counts.len() == 1 { 0 } else { j }] as usize;
    let mut shape = x.shape.clone();
    shape[axis] = (0..len).map(times).fold(0usize, usize::saturating_add);
    ev.take(&shape, 1)?;
    let places: Vec<usize> = (0..len).flat_map(|j| std::iter::repeat_n(j, times(j))).collect();
    super::select::along(ev, &x, axis, &places)
}

fn to(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let positional = if let Value::List(list) = a.get(1) { list.to_vec() } else { vec![a.get(1).clone()] };
    let mut dtype = None;
    for v in positional.iter().chain([a.get(2), a.get(3)]) {
        match v {
            Value::Dtype(d) => dtype = Some(*d),
            Value::Tensor(t) => dtype = Some(t.dtype),
            Value::None | Value::Setting | Value::Bool(_) => {}
            Value::Text(device) if &**device == "cpu" => {}
            other => return refuse(format!("to takes a dtype, a tensor or the device cpu, not {}", other.kind())),
        }
    }
    Ok(dtype.map_or_else(|| Ok(x.clone()), |d| ev.cast(&x, d))?.into())
}

fn attribute(ev: &mut Eval, a: &Args) -> Result<Value> {
    let name = a.text(1)?.unwrap_or_default();
    if let Value::Ranked { values, indices } = a.get(0) {
        return match name {
            "values" => Ok(values.clone().into()),
            "indices" => Ok(indices.clone().into()),
            _ => refuse(format!("attribute {name:?} is not allowed here; allowed are values, indices")),
        };
    }
    let x = a.tensor(0)?;
    Ok(match name {
        "shape" => Value::ints(x.shape),
        "ndim" => Value::Int(x.rank() as i64),
        "dtype" => Value::Dtype(x.dtype),
        "device" | "layout" => Value::Setting,
        "requires_grad" => Value::Bool(x.node.is_some()),
        "is_cuda" | "is_sparse" | "is_quantized" => Value::Bool(false),
        "data" => x.detached().into(),
        "T" | "mT" if x.rank() == 2 => return swapped(ev, &x, 0, 1),
        "T" if x.rank() < 2 => x.into(),
        "mT" if x.rank() > 2 => return swapped(ev, &x, x.rank() - 2, x.rank() - 1),
        _ => {
            return refuse(format!(
                "attribute {name:?} is not allowed; allowed are shape, ndim, dtype, device, layout, requires_grad, data, \
                 T, mT"
            ));
        }
    })
}
