//! New tensors of constants.

use super::args::Args;
use super::eval::Eval;
use super::ops::{Op, call};
use super::value::{Dtype, Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("zeros_like", "input dtype", |ev, a| like(ev, a, 1, 0.0)),
    call("empty_like", "input dtype", |ev, a| like(ev, a, 1, 0.0)),
    call("ones_like", "input dtype", |ev, a| like(ev, a, 1, 1.0)),
    call("full_like", "input fill_value dtype", |ev, a| like(ev, a, 2, a.float(1, 0.0)?)),
    call("zero", "input", |ev, a| like(ev, a, 0, 0.0)),
    call("fill", "input value", |ev, a| like(ev, a, 0, a.float(1, 0.0)?)),
    call("new_zeros", "input *size dtype", |ev, a| of_kind(ev, a, 2, 0.0)),
    call("new_ones", "input *size dtype", |ev, a| of_kind(ev, a, 2, 1.0)),
    call("new_full", "input size fill_value dtype", |ev, a| of_kind(ev, a, 3, a.float(2, 0.0)?)),
    call("new_tensor", "input data dtype", |ev, a| {
        let own = a.tensor(0)?.dtype;
        literal(ev, a, 1, a.dtype(2)?.or(Some(own)))
    }),
    call("zeros", "*size dtype", |ev, a| filled(ev, &a.required_ints(0)?, a.dtype(1)?.unwrap_or(Dtype::F32), 0.0)),
    call("ones", "*size dtype", |ev, a| filled(ev, &a.required_ints(0)?, a.dtype(1)?.unwrap_or(Dtype::F32), 1.0)),
    call("full", "size fill_value dtype", |ev, a| {
        let own = a.get(1).number().map_or(Dtype::F32, |(d, _)| d);
        filled(ev, &a.required_ints(0)?, a.dtype(2)?.unwrap_or(own), a.float(1, 0.0)?)
    }),
    call("empty", "*size dtype", |ev, a| filled(ev, &a.required_ints(0)?, a.dtype(1)?.unwrap_or(Dtype::F32), 0.0)),
    call("new_empty", "input *size dtype", |ev, a| of_kind(ev, a, 2, 0.0)),
    call("linspace", "start end steps dtype", |ev, a| {
        let (start, end) = (a.float(0, 0.0)?, a.float(1, 0.0)?);
        let Some(n) = a.int(2)?.and_then(|n| usize::try_from(n).ok()) else { return refuse("steps is missing") };
        let n = ev.take(&[n], 0)?;
        let at = |i: usize| if n == 1 { start } else { start + (end - start) * i as f64 / (n - 1) as f64 };
        Ok(Tensor::constant(vec![n], a.dtype(3)?.unwrap_or(Dtype::F32), (0..n).map(at).collect()).into())
    }),
    call("arange", "start end step dtype", arange),
    call("tensor", "data dtype", |ev, a| literal(ev, a, 0, a.dtype(1)?)),
    call("as_tensor", "data dtype", |ev, a| literal(ev, a, 0, a.dtype(1)?)),
    call("scalar_tensor", "data dtype", |ev, a| literal(ev, a, 0, a.dtype(1)?.or(Some(Dtype::F32)))),
    call("one_hot", "input num_classes", one_hot),
];

fn filled(ev: &mut Eval, sizes: &[i64], dtype: Dtype, x: f64) -> Result<Value> {
    let size = |n: &i64| usize::try_from(*n);
    let Ok(shape) = sizes.iter().map(size).collect::<std::result::Result<Vec<_>, _>>() else {
        return refuse(format!("size {sizes:?} must not be negative"));
    };
    let n = ev.take(&shape, 0)?;
    Ok(Tensor::constant(shape, dtype, vec![dtype.cast(x); n]).into())
}

/// Shape and dtype of the first argument; argument `dtype` may name another dtype (0: cannot).
fn like(ev: &mut Eval, a: &Args, dtype: usize, x: f64) -> Result<Value> {
    let model = a.tensor(0)?;
    let named = if dtype == 0 { None } else { a.dtype(dtype)? };
    let dtype = named.unwrap_or(model.dtype);
    let n = ev.take(&model.shape, 0)?;
    Ok(Tensor::constant(model.shape, dtype, vec![dtype.cast(x); n]).into())
}

fn of_kind(ev: &mut Eval, a: &Args, dtype: usize, x: f64) -> Result<Value> {
    let own = a.tensor(0)?.dtype;
    filled(ev, &a.required_ints(1)?, a.dtype(dtype)?.unwrap_or(own), x)
}

fn arange(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (start, end) = if a.given(1) { (a.float(0, 0.0)?, a.float(1, 0.0)?) } else { (0.0, a.float(0, 0.0)?) };
    let step = a.float(2, 1.0)?;
    let whole = (0..3).all(|i| !matches!(a.get(i), Value::Float(_)));
    let n = ((end - start) / step).ceil();
    if !(0.0..1e9).contains(&n) {
        return refuse(format!("arange from {start} to {end} by {step} has no length"));
    }
    let dtype = a.dtype(3)?.unwrap_or(if whole { Dtype::I64 } else { Dtype::F32 });
    let n = ev.take(&[n as usize], 0)?;
    let data = (0..n).map(|i| dtype.cast(start + i as f64 * step)).collect();
    Ok(Tensor::constant(vec![n], dtype, data).into())
}

/// A number, or nested lists of numbers, all of one length in each dimension. Tensors lose their past.
fn literal(ev: &mut Eval, a: &Args, i: usize, dtype: Option<Dtype>) -> Result<Value> {
    if let Value::Tensor(t) = a.get(i) {
        return Ok(ev.cast(&t.detached(), dtype.unwrap_or(t.dtype))?.into());
    }
    let mut shape = Vec::new();
    let mut first = a.get(i);
    while let Value::List(list) = first {
        shape.push(list.len());
        let Some(inner) = list.first() else { break };
        first = inner;
    }
    let mut data = Vec::with_capacity(ev.take(&shape, 0)?);
    let mut kind = Dtype::Bool;
    read(a.get(i), &shape, &mut data, &mut kind)?;
    let dtype = dtype.unwrap_or(kind);
    Ok(Tensor::constant(shape, dtype, data.into_iter().map(|x| dtype.cast(x)).collect()).into())
}

/// Appends the numbers of `v`, whose lists must have these lengths.
fn read(v: &Value, shape: &[usize], data: &mut Vec<f64>, kind: &mut Dtype) -> Result<()> {
    let number = match v {
        Value::Tensor(t) if t.rank() == 0 => Some((t.dtype, t.data[0])),
        _ => v.number(),
    };
    match (v, number, shape) {
        (_, Some((dtype, x)), []) => {
            *kind = (*kind).max(dtype);
            data.push(x);
            Ok(())
        }
        (Value::List(list), _, [len, inner @ ..]) if list.len() == *len => {
            list.iter().try_for_each(|v| read(v, inner, data, kind))
        }
        (Value::List(_), ..) | (_, Some(_), _) => refuse("the lists differ in length"),
        _ => refuse(format!("data must be numbers or lists of numbers, not {}", v.kind())),
    }
}

fn one_hot(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let classes = x.ints("input")?;
    let most = classes.iter().copied().max().unwrap_or(-1);
    let asked = a.int(1)?.unwrap_or(-1);
    let n = if asked == -1 { most + 1 } else { asked };
    if n < 1 || classes.iter().any(|c| !(0..n).contains(c)) {
        return refuse(format!("class {most} is not among {n} classes"));
    }
    let shape = [&x.shape[..], &[n as usize]].concat();
    let mut data = vec![0.0; ev.take(&shape, 0)?];
    for (i, c) in classes.iter().enumerate() {
        data[i * n as usize + *c as usize] = 1.0;
    }
    Ok(Tensor::constant(shape, Dtype::I64, data).into())
}
