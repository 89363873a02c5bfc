//! Parts of a tensor: Python's indexing with all its forms, gather, masks, windows.

use super::args::Args;
use super::eval::{Eval, NOWHERE};
use super::layout::broadcasted;
use super::ops::{Op, call};
use super::shape::{Lines, broadcast, strides, walk};
use super::value::{Dtype, Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("getitem", "input index", getitem),
    call("select", "input dim index", |ev, a| {
        let (x, axis) = on_axis(a, 1)?;
        let place = place(a.int(2)?.unwrap_or(0), x.shape[axis])?;
        let part = along(ev, &x, axis, &[place])?;
        without(ev, part, axis)
    }),
    call("narrow", "input dim start length", |ev, a| {
        let (x, axis) = on_axis(a, 1)?;
        let (start, length) = (a.int(2)?.unwrap_or(0), a.int(3)?.unwrap_or(0));
        let start = if start < 0 { start + x.shape[axis] as i64 } else { start };
        if start < 0 || length < 0 || start.saturating_add(length) > x.shape[axis] as i64 {
            return refuse(format!("start {start} and length {length} leave the dimension of {}", x.shape[axis]));
        }
        along(ev, &x, axis, &(start as usize..(start + length) as usize).collect::<Vec<_>>())
    }),
    call("index_select", "input dim index", |ev, a| {
        let (x, axis) = on_axis(a, 1)?;
        let places = places(&a.tensor(2)?, x.shape[axis])?;
        along(ev, &x, axis, &places)
    }),
    call("gather", "input dim index sparse_grad", |ev, a| {
        let (x, axis) = on_axis(a, 1)?;
        gather(ev, &x, axis, &a.tensor(2)?)
    }),
    call("take_along_dim", "input indices dim", take_along_dim),
    call("take", "input index", |ev, a| {
        let (x, index) = (a.tensor(0)?, a.tensor(1)?);
        let from = places(&index, x.len())?.into_iter().map(|i| i as u32).collect();
        Ok(ev.pick(&x, index.shape, from, 0.0)?.into())
    }),
    call("masked_select", "input mask", |ev, a| {
        let (x, mask) = (a.tensor(0)?, a.tensor(1)?);
        let shape = broadcast(&x.shape, &mask.shape)?;
        let (x, mask) = (broadcasted(ev, &x, shape.clone())?, broadcasted(ev, &mask, shape)?);
        index(ev, &x, &[Value::Tensor(mask)])
    }),
    call("nonzero", "input as_tuple", nonzero),
    call("diagonal", "input offset dim1 dim2", diagonal),
    call("diag", "input diagonal", diag),
    call("tril", "input diagonal", |ev, a| triangle(ev, a, |row, col, k| col - row <= k)),
    call("triu", "input diagonal", |ev, a| triangle(ev, a, |row, col, k| col - row >= k)),
    call("pad", "input pad mode value", pad),
    call("unfold", "input dimension size step", unfold),
];

fn on_axis(a: &Args, i: usize) -> Result<(Tensor, usize)> {
    let x = a.tensor(0)?;
    match a.axis(i, x.rank())? {
        Some(axis) if axis < x.rank() => Ok((x, axis)),
        _ => refuse(format!("a dimension of shape {:?} must be named", x.shape)),
    }
}

fn place(i: i64, len: usize) -> Result<usize> {
    let n = len as i64;
    if (-n..n).contains(&i) {
        Ok(i.rem_euclid(n) as usize)
    } else {
        refuse(format!("index {i} is out of range for {n}"))
    }
}

pub fn places(index: &Tensor, len: usize) -> Result<Vec<usize>> {
    index.ints("index")?.into_iter().map(|i| place(i, len)).collect()
}

/// The cells of `axis` at these places.
pub fn along(ev: &mut Eval, x: &Tensor, axis: usize, at: &[usize]) -> Result<Value> {
    let mut shape = x.shape.clone();
    shape[axis] = at.len();
    ev.take(&shape, 0)?;
    let (to, source) = (Lines::of(&shape, axis), Lines::of(&x.shape, axis));
    let mut from = vec![0; to.lines * to.len];
    for l in 0..to.lines {
        for (j, place) in at.iter().enumerate() {
            from[to.at(l, j)] = source.at(l, *place) as u32;
        }
    }
    Ok(ev.pick(x, shape, from, 0.0)?.into())
}

/// The same without its axis of one cell.
pub fn without(ev: &mut Eval, part: Value, axis: usize) -> Result<Value> {
    let Value::Tensor(t) = part else { return Ok(part) };
    let mut shape = t.shape.clone();
    shape.remove(axis);
    Ok(ev.reshaped(&t, shape)?.into())
}

fn gather(ev: &mut Eval, x: &Tensor, axis: usize, index: &Tensor) -> Result<Value> {
    let from = flat_index(ev, x, axis, index)?;
    Ok(ev.pick(x, index.shape.clone(), from, 0.0)?.into())
}

/// The cell of `x` that each cell of an index along `axis` means.
pub fn flat_index(ev: &mut Eval, x: &Tensor, axis: usize, index: &Tensor) -> Result<Vec<u32>> {
    let fits = index.rank() == x.rank() && (0..x.rank()).all(|d| d == axis || index.shape[d] <= x.shape[d]);
    if !fits {
        return refuse(format!("index of shape {:?} does not fit a tensor of shape {:?}", index.shape, x.shape));
    }
    let at = places(index, x.shape[axis])?;
    let own = strides(&x.shape);
    let steps: Vec<isize> = (0..x.rank()).map(|d| if d == axis { 0 } else { own[d] }).collect();
    ev.take(&index.shape, 1)?;
    let mut from = walk(&index.shape, &steps, 0);
    for (f, place) in from.iter_mut().zip(at) {
        *f += place as u32 * own[axis] as u32;
    }
    Ok(from)
}

fn take_along_dim(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, indices) = (a.tensor(0)?, a.tensor(1)?);
    let Some(axis) = a.axis(2, x.rank())?.filter(|d| *d < x.rank()) else {
        let flat = ev.reshaped(&x, vec![x.len()])?;
        let index = ev.reshaped(&indices, vec![indices.len()])?;
        return gather(ev, &flat, 0, &index);
    };
    if indices.rank() != x.rank() {
        return refuse(format!("indices of shape {:?} must have rank {}", indices.shape, x.rank()));
    }
    let joined = |a: &[usize], b: &[usize]| -> Result<Vec<usize>> {
        let (mut a, mut b) = (a.to_vec(), b.to_vec());
        let keep = a[axis];
        (a[axis], b[axis]) = (1, 1);
        let mut shape = broadcast(&a, &b)?;
        shape[axis] = keep;
        Ok(shape)
    };
    let (for_x, for_index) = (joined(&x.shape, &indices.shape)?, joined(&indices.shape, &x.shape)?);
    let (x, index) = (broadcasted(ev, &x, for_x)?, broadcasted(ev, &indices, for_index)?);
    gather(ev, &x, axis, &index)
}

fn getitem(ev: &mut Eval, a: &Args) -> Result<Value> {
    match (a.get(0), a.get(1)) {
        (Value::List(list), Value::Int(i)) => Ok(list[place(*i, list.len())?].clone()),
        (Value::List(list), Value::Slice(slice)) => {
            Ok(Value::list(cells(slice, list.len())?.into_iter().map(|i| list[i].clone()).collect()))
        }
        (Value::Ranked { values, indices }, Value::Int(i)) => {
            Ok(if place(*i, 2)? == 0 { values.clone() } else { indices.clone() }.into())
        }
        // A tuple: what Python means by a list comes as a tuple of that list (see compile.rs).
        (Value::Tensor(x), Value::List(list)) => index(ev, x, list),
        (Value::Tensor(x), one) => index(ev, x, std::slice::from_ref(one)),
        (other, _) => refuse(format!("{} cannot be indexed so", other.kind())),
    }
}

/// The places a slice of a dimension of `len` names.
fn cells(slice: &[Value; 3], len: usize) -> Result<Vec<usize>> {
    let number = |v: &Value| match v {
        Value::None => Ok(None),
        Value::Int(n) => Ok(Some(*n)),
        Value::Tensor(t) if t.dtype == Dtype::I64 && t.len() == 1 => Ok(Some(t.data[0] as i64)),
        other => refuse(format!("a slice takes ints, not {}", other.kind())),
    };
    let (start, stop, step) = (number(&slice[0])?, number(&slice[1])?, number(&slice[2])?.unwrap_or(1));
    if step < 1 {
        return refuse(format!("slice step {step} must be positive"));
    }
    let n = len as i64;
    let bound = |i: i64| if i < 0 { i.saturating_add(n).max(0) } else { i.min(n) };
    let (start, stop) = (bound(start.unwrap_or(0)), bound(stop.unwrap_or(n)));
    Ok((start..stop).step_by(usize::try_from(step).unwrap_or(usize::MAX)).map(|i| i as usize).collect())
}

/// `x[items]`. Ints, slices, None and the ellipsis first, one by one; then all tensors together.
fn index(ev: &mut Eval, x: &Tensor, items: &[Value]) -> Result<Value> {
    let uses = |v: &Value| match v {
        Value::None | Value::Ellipsis => 0,
        Value::Tensor(t) if t.dtype == Dtype::Bool => t.rank(),
        _ => 1,
    };
    let used: usize = items.iter().map(uses).sum();
    let Some(rest) = x.rank().checked_sub(used) else {
        return refuse(format!("{used} indices for a tensor of shape {:?}", x.shape));
    };
    let mut part = x.clone();
    let mut picks: Vec<(usize, Tensor)> = Vec::new();
    let mut at = 0;
    for item in items {
        match item {
            Value::Ellipsis => at += rest,
            Value::None => {
                let mut shape = part.shape.clone();
                shape.insert(at, 1);
                part = ev.reshaped(&part, shape)?;
                at += 1;
            }
            Value::Int(i) => {
                let one = along(ev, &part, at, &[place(*i, part.shape[at])?])?;
                let Value::Tensor(t) = without(ev, one, at)? else { return refuse("not a tensor") };
                part = t;
            }
            Value::Slice(slice) => {
                let Value::Tensor(t) = along(ev, &part, at, &cells(slice, part.shape[at])?)? else {
                    return refuse("not a tensor");
                };
                part = t;
                at += 1;
            }
            Value::Tensor(t) if t.dtype == Dtype::Bool => {
                if part.shape[at..at + t.rank()] != t.shape[..] {
                    return refuse(format!("a mask of shape {:?} for a tensor of shape {:?}", t.shape, part.shape));
                }
                picks.extend(true_cells(ev, t)?.into_iter().enumerate().map(|(d, i)| (at + d, i)));
                at += t.rank();
            }
            Value::Tensor(t) => {
                picks.push((at, t.clone()));
                at += 1;
            }
            Value::List(list) => {
                let ints = Args { params: &["index"], values: &[Value::List(list.clone())] }.required_ints(0)?;
                let data = ints.iter().map(|i| *i as f64).collect();
                picks.push((at, Tensor::constant(vec![ints.len()], Dtype::I64, data)));
                at += 1;
            }
            other => return refuse(format!("{} is no index", other.kind())),
        }
    }
    if picks.is_empty() { Ok(part.into()) } else { pick_all(ev, &part, &picks) }
}

/// Where a mask is true: an index for each of its dimensions. A mask of rank 0 has none.
fn true_cells(ev: &mut Eval, mask: &Tensor) -> Result<Vec<Tensor>> {
    if mask.rank() == 0 {
        return refuse("a mask must have at least one dimension");
    }
    ev.spend(mask.len() * mask.rank(), &mask.shape)?;
    let own = strides(&mask.shape);
    let hits: Vec<usize> = (0..mask.len()).filter(|i| mask.data[*i] != 0.0).collect();
    let along = |d: usize| hits.iter().map(|i| (i / own[d] as usize % mask.shape[d]) as f64).collect();
    Ok((0..mask.rank()).map(|d| Tensor::constant(vec![hits.len()], Dtype::I64, along(d))).collect())
}

/// Several dimensions indexed by tensors that broadcast: their common shape stands where the first of them stood, or in
/// front when other dimensions lie between them.
fn pick_all(ev: &mut Eval, x: &Tensor, picks: &[(usize, Tensor)]) -> Result<Value> {
    let shape = picks.iter().try_fold(Vec::new(), |shape, (_, t)| broadcast(&shape, &t.shape))?;
    let own = strides(&x.shape);
    let mut offsets = vec![0u32; ev.take(&shape, 1)?];
    for (d, t) in picks {
        let at = places(t, x.shape[*d])?;
        let map = super::shape::spread(&t.shape, &shape);
        for (o, offset) in offsets.iter_mut().enumerate() {
            *offset += at[map.as_ref().map_or(o, |m| m[o] as usize)] as u32 * own[*d] as u32;
        }
    }
    let adjacent = picks.windows(2).all(|w| w[0].0 + 1 == w[1].0);
    let front = if adjacent { picks[0].0 } else { 0 };
    let rest: Vec<usize> = (0..x.rank()).filter(|d| picks.iter().all(|(p, _)| p != d)).collect();
    let (before, after) = rest.split_at(front.min(rest.len()));
    let sizes = |dims: &[usize]| dims.iter().map(|d| x.shape[*d]).collect::<Vec<_>>();
    let steps = |dims: &[usize]| dims.iter().map(|d| own[*d]).collect::<Vec<_>>();
    let full = [sizes(before), shape, sizes(after)].concat();
    ev.take(&full, 1)?;
    let (outer, inner) = (walk(&sizes(before), &steps(before), 0), walk(&sizes(after), &steps(after), 0));
    let mut from = Vec::with_capacity(outer.len() * offsets.len() * inner.len());
    for o in &outer {
        for offset in &offsets {
            from.extend(inner.iter().map(|i| o + offset + i));
        }
    }
    Ok(ev.pick(x, full, from, 0.0)?.into())
}

fn nonzero(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let mask = super::unary::test(ev, &x, |v| v != 0.0)?;
    let along = true_cells(ev, &mask)?;
    if a.flag(1, false)? {
        return Ok(Value::list(along.into_iter().map(Value::from).collect()));
    }
    let n = along.first().map_or(0, Tensor::len);
    let data = (0..n).flat_map(|i| along.iter().map(move |t| t.data[i])).collect();
    Ok(Tensor::constant(vec![n, x.rank()], Dtype::I64, data).into())
}

fn diagonal(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    if x.rank() != 2 || (a.given(2) && (a.axis(2, 2)?, a.axis(3, 2)?) != (Some(0), Some(1))) {
        return refuse("diagonal takes a matrix and its dimensions 0 and 1");
    }
    of_diagonal(ev, &x, a.int(1)?.unwrap_or(0))
}

fn of_diagonal(ev: &mut Eval, x: &Tensor, k: i64) -> Result<Value> {
    let (rows, cols) = (x.shape[0] as i64, x.shape[1] as i64);
    let from: Vec<u32> =
        (0..rows).filter(|r| (0..cols).contains(&r.saturating_add(k))).map(|r| (r * cols + r + k) as u32).collect();
    Ok(ev.pick(x, vec![from.len()], from, 0.0)?.into())
}

fn diag(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, k) = (a.tensor(0)?, a.int(1)?.unwrap_or(0));
    if x.rank() == 2 {
        return of_diagonal(ev, &x, k);
    }
    if x.rank() != 1 || k.unsigned_abs() > 1 << 20 {
        return refuse(format!("diag takes a vector or a matrix, not shape {:?}, and a diagonal near it", x.shape));
    }
    let n = x.len() as i64 + k.abs();
    ev.take(&[n as usize, n as usize], 1)?;
    let source = |cell: i64| {
        let (row, col) = (cell / n, cell % n);
        if col - row == k { row.min(col) as u32 } else { NOWHERE }
    };
    let from = (0..n * n).map(source).collect();
    Ok(ev.pick(&x, vec![n as usize; 2], from, 0.0)?.into())
}

fn triangle(ev: &mut Eval, a: &Args, kept: fn(i64, i64, i64) -> bool) -> Result<Value> {
    let (x, k) = (a.tensor(0)?, a.int(1)?.unwrap_or(0));
    let [.., rows, cols] = x.shape[..] else { return refuse("a triangle needs at least two dimensions") };
    let keeps = |i: usize| kept((i / cols.max(1) % rows.max(1)) as i64, (i % cols.max(1)) as i64, k);
    let from = (0..x.len()).map(|i| if keeps(i) { i as u32 } else { NOWHERE }).collect();
    Ok(ev.pick(&x, x.shape.clone(), from, 0.0)?.into())
}

fn pad(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let widths = a.required_ints(1)?;
    if a.text(2)?.unwrap_or("constant") != "constant" {
        return refuse("pad: only mode \"constant\" is allowed");
    }
    if !widths.len().is_multiple_of(2) || widths.len() / 2 > x.rank() {
        return refuse(format!("pad {widths:?} needs two widths for each of at most {} dimensions", x.rank()));
    }
    let side = |d: usize, s: usize| widths.get(2 * (x.rank() - 1 - d) + s).copied().unwrap_or(0);
    let size = |d: usize| usize::try_from((x.shape[d] as i64).saturating_add(side(d, 0)).saturating_add(side(d, 1)));
    let Ok(shape) = (0..x.rank()).map(size).collect::<std::result::Result<Vec<_>, _>>() else {
        return refuse(format!("pad {widths:?} leaves less than nothing of shape {:?}", x.shape));
    };
    let n = ev.take(&shape, 1)?;
    let (to, own) = (strides(&shape), strides(&x.shape));
    let source = |cell: usize| {
        (0..x.rank()).try_fold(0i64, |at, d| {
            let i = ((cell / to[d] as usize % shape[d]) as i64).saturating_sub(side(d, 0));
            (0..x.shape[d] as i64).contains(&i).then(|| at + i * own[d] as i64)
        })
    };
    let from = (0..n).map(|cell| source(cell).map_or(NOWHERE, |at| at as u32)).collect();
    Ok(ev.pick(&x, shape, from, a.float(3, 0.0)?)?.into())
}

/// Windows of `size` cells, `step` apart, in a new last dimension.
fn unfold(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, axis) = on_axis(a, 1)?;
    let (size, step) = (a.int(2)?.unwrap_or(0), a.int(3)?.unwrap_or(0));
    if size < 1 || step < 1 || size > x.shape[axis] as i64 {
        return refuse(format!("windows of {size} every {step} do not fit a dimension of {}", x.shape[axis]));
    }
    let own = strides(&x.shape);
    let mut shape = x.shape.clone();
    shape[axis] = (x.shape[axis] - size as usize) / step as usize + 1;
    shape.push(size as usize);
    ev.take(&shape, 1)?;
    let mut steps = own.clone();
    steps[axis] = if shape[axis] > 1 { own[axis] * step as isize } else { 0 };
    steps.push(own[axis]);
    let from = walk(&shape, &steps, 0);
    Ok(ev.pick(&x, shape, from, 0.0)?.into())
}
