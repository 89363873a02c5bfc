//! Functions of two and three operands, cell by cell over broadcast shapes; at ties the derivative torch takes.

use std::f64::consts::LN_2;

use super::args::{Args, fit};
use super::eval::Eval;
use super::ops::{Op, Run, call};
use super::unary::flag;
use super::value::{Dtype, Tensor, Value, promote, refuse};
use crate::error::Result;

const fn pair(name: &'static str, f: fn([f64; 2]) -> (f64, [f64; 2])) -> Op {
    Op { name, params: "input other", run: Run::Pair(f) }
}

const fn choice(name: &'static str, f: fn([f64; 2]) -> (f64, [f64; 2])) -> Op {
    Op { name, params: "input other", run: Run::Choice(f) }
}

const fn smooth(name: &'static str, f: fn([f64; 2]) -> (f64, [f64; 2])) -> Op {
    Op { name, params: "input other", run: Run::SmoothPair(f) }
}

const fn check(name: &'static str, f: fn(f64, f64) -> bool) -> Op {
    Op { name, params: "input other", run: Run::Compare(f) }
}

pub const OPS: &[Op] = &[
    pair("mul", |[a, b]| (a * b, [b, a])),
    choice("maximum", |[a, b]| chosen(a, b, a > b)),
    choice("minimum", |[a, b]| chosen(a, b, a < b)),
    choice("fmax", |[a, b]| one_of(a, b, b.is_nan() || a >= b)),
    choice("fmin", |[a, b]| one_of(a, b, b.is_nan() || a <= b)),
    pair("remainder", |[a, b]| (a - (a / b).floor() * b, [1.0, -(a / b).floor()])),
    choice("floor_divide", |[a, b]| ((a / b).floor(), [0.0, 0.0])),
    pair("fmod", |[a, b]| (a % b, [1.0, -(a / b).trunc()])),
    smooth("atan2", |[a, b]| (a.atan2(b), [b / (a * a + b * b), -a / (a * a + b * b)])),
    smooth("hypot", |[a, b]| (a.hypot(b), [a / a.hypot(b), b / a.hypot(b)])),
    smooth("logaddexp", |[a, b]| log_add(a, b, 1.0)),
    smooth("logaddexp2", |[a, b]| log_add(a, b, LN_2)),
    smooth("xlogy", |[a, b]| {
        let value = if b.is_nan() || a != 0.0 { a * b.ln() } else { 0.0 };
        (value, [if a == 0.0 && b <= 0.0 { 0.0 } else { b.ln() }, a / b])
    }),
    smooth("xlog1py", |[a, b]| {
        let value = if b.is_nan() || a != 0.0 { a * b.ln_1p() } else { 0.0 };
        (value, [if a == 0.0 && b <= -1.0 { 0.0 } else { b.ln_1p() }, a / (1.0 + b)])
    }),
    smooth("copysign", |[a, b]| {
        let value = a.copysign(b);
        (value, [if a == 0.0 { 0.0 } else { value / a }, 0.0])
    }),
    choice("heaviside", |[a, b]| (if a == 0.0 { b } else { flag(a > 0.0) }, [0.0, 0.0])),
    check("eq", |a, b| a == b),
    check("ne", |a, b| a != b),
    check("lt", |a, b| a < b),
    check("le", |a, b| a <= b),
    check("gt", |a, b| a > b),
    check("ge", |a, b| a >= b),
    check("logical_and", |a, b| a != 0.0 && b != 0.0),
    check("logical_or", |a, b| a != 0.0 || b != 0.0),
    check("logical_xor", |a, b| (a != 0.0) != (b != 0.0)),
    call("add", "input other alpha", |ev, a| sum(ev, a, [0, 1], 1.0)),
    call("sub", "input other alpha", |ev, a| sum(ev, a, [0, 1], -1.0)),
    call("rsub", "input other alpha", |ev, a| sum(ev, a, [1, 0], -1.0)),
    call("div", "input other rounding_mode", div),
    call("pow", "input exponent", |ev, a| power(ev, a, false)),
    call("float_power", "input exponent", |ev, a| power(ev, a, true)),
    call("bitwise_and", "input other", |ev, a| bits(ev, a, |x, y| x & y)),
    call("bitwise_or", "input other", |ev, a| bits(ev, a, |x, y| x | y)),
    call("bitwise_xor", "input other", |ev, a| bits(ev, a, |x, y| x ^ y)),
    call("isclose", "input other rtol atol equal_nan", isclose),
    call("isin", "elements test_elements assume_unique invert", isin),
    call("clamp", "input min max", clamp),
    call("clamp_min", "input min", |ev, a| limit(ev, a, true)),
    call("clamp_max", "input max", |ev, a| limit(ev, a, false)),
    call("where", "condition input other", |ev, a| select(ev, a, [0, 1, 2], None)),
    call("Tensor.where", "input condition other", |ev, a| select(ev, a, [1, 0, 2], None)),
    call("masked_fill", "input mask value", |ev, a| {
        let own = a.tensor(0)?.dtype;
        select(ev, a, [1, 2, 0], Some(own))
    }),
    call("lerp", "input end weight", lerp),
    call("addcmul", "input tensor1 tensor2 value", addcmul),
    call("addcdiv", "input tensor1 tensor2 value", addcdiv),
];

/// The larger or smaller of two: NaN if one is, half of the derivative each at a tie.
fn chosen(a: f64, b: f64, first: bool) -> (f64, [f64; 2]) {
    if a.is_nan() || b.is_nan() {
        return (f64::NAN, [flag(a.is_nan()), flag(b.is_nan())]);
    }
    if a == b { (a, [0.5, 0.5]) } else { one_of(a, b, first) }
}

fn one_of(a: f64, b: f64, first: bool) -> (f64, [f64; 2]) {
    if first { (a, [1.0, 0.0]) } else { (b, [0.0, 1.0]) }
}

/// ln(eᵃ + eᵇ) in units of `unit` nats.
fn log_add(a: f64, b: f64, unit: f64) -> (f64, [f64; 2]) {
    if a == b {
        return (a + LN_2 / unit, [0.5, 0.5]);
    }
    let (high, gap) = (a.max(b), (a - b).abs() * unit);
    let low = (-gap).exp() / (1.0 + (-gap).exp());
    let shares = if a > b { [1.0 - low, low] } else { [low, 1.0 - low] };
    (if a.is_nan() || b.is_nan() { f64::NAN } else { high + (-gap).exp().ln_1p() / unit }, shares)
}

pub fn compare(ev: &mut Eval, a: &Tensor, b: &Tensor, f: impl Fn(f64, f64) -> bool) -> Result<Tensor> {
    ev.pointwise([a, b], Dtype::Bool, |[a, b]| (flag(f(a, b)), [0.0; 2]))
}

pub fn add(ev: &mut Eval, a: &Tensor, b: &Tensor, alpha: f64) -> Result<Tensor> {
    let dtype = promote([(a, false), (b, false)]);
    ev.pointwise([a, b], dtype, |[a, b]| (a + alpha * b, [1.0, alpha]))
}

pub fn mul(ev: &mut Eval, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dtype = promote([(a, false), (b, false)]);
    ev.pointwise([a, b], dtype, |[a, b]| (a * b, [b, a]))
}

pub fn over(ev: &mut Eval, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dtype = promote([(a, false), (b, false)]).float();
    ev.pointwise([a, b], dtype, |[a, b]| (a / b, [b.recip(), -a / (b * b)]))
}

fn sum(ev: &mut Eval, a: &Args, which: [usize; 2], sign: f64) -> Result<Value> {
    if which.iter().all(|i| a.get(*i).number().is_some()) {
        return super::python::arithmetic(if sign > 0.0 { "add" } else { "sub" }, a.get(which[0]), a.get(which[1]));
    }
    let ([x, y], dtype) = a.operands(which)?;
    if sign < 0.0 && x.dtype == Dtype::Bool && y.dtype == Dtype::Bool {
        return refuse("bools cannot be subtracted; use ^ or logical_xor");
    }
    let alpha = sign * a.float(2, 1.0)?;
    Ok(ev.pointwise([&x, &y], dtype, |[x, y]| (dtype.cast(x + alpha * y), [1.0, alpha]))?.into())
}

fn div(ev: &mut Eval, a: &Args) -> Result<Value> {
    if a.get(0).number().is_some() && a.get(1).number().is_some() {
        return super::python::arithmetic("div", a.get(0), a.get(1));
    }
    let ([x, y], dtype) = a.operands([0, 1])?;
    Ok(match a.text(2)? {
        None => over(ev, &x, &y)?,
        Some("floor") => ev.choose([&x, &y], dtype, |[x, y]| ((x / y).floor(), [0.0; 2]))?,
        Some("trunc") => ev.choose([&x, &y], dtype, |[x, y]| ((x / y).trunc(), [0.0; 2]))?,
        Some(other) => return refuse(format!("rounding_mode {other:?} is not allowed; allowed are floor, trunc")),
    }
    .into())
}

fn power(ev: &mut Eval, a: &Args, always_float: bool) -> Result<Value> {
    if !always_float && a.get(0).number().is_some() && a.get(1).number().is_some() {
        return super::python::arithmetic("pow", a.get(0), a.get(1));
    }
    let ([x, y], dtype) = a.operands([0, 1])?;
    if dtype == Dtype::I64 && !always_float && y.data.iter().any(|e| *e < 0.0) {
        return refuse("integers to negative powers are not allowed");
    }
    let dtype = if always_float { Dtype::F64 } else { dtype };
    let f = |[x, y]: [f64; 2]| {
        let value = x.powf(y);
        let by_x = if y == 0.0 { 0.0 } else { y * x.powf(y - 1.0) };
        (value, [by_x, if x == 0.0 && y >= 0.0 { 0.0 } else { value * x.ln() }])
    };
    Ok(ev.pointwise([&x, &y], dtype, f)?.into())
}

fn bits(ev: &mut Eval, a: &Args, f: fn(i64, i64) -> i64) -> Result<Value> {
    let ([x, y], dtype) = a.operands([0, 1])?;
    if dtype.is_float() {
        return refuse("bitwise operations take bools and integers, not floats");
    }
    Ok(ev.pointwise([&x, &y], dtype, |[x, y]| (f(x as i64, y as i64) as f64, [0.0; 2]))?.into())
}

fn isclose(ev: &mut Eval, a: &Args) -> Result<Value> {
    let ([x, y], _) = a.operands([0, 1])?;
    let (rtol, atol, nan) = (a.float(2, 1e-5)?, a.float(3, 1e-8)?, a.flag(4, false)?);
    let near = |x: f64, y: f64| {
        x == y || (nan && x.is_nan() && y.is_nan()) || (y.is_finite() && (x - y).abs() <= atol + rtol * y.abs())
    };
    Ok(compare(ev, &x, &y, near)?.into())
}

fn isin(ev: &mut Eval, a: &Args) -> Result<Value> {
    let ([x, set], _) = a.operands([0, 1])?;
    let invert = a.flag(3, false)?;
    let mut set = set.data.to_vec();
    set.sort_by(f64::total_cmp);
    ev.spend(set.len(), &x.shape)?;
    // −0 equals 0, and NaN nothing.
    let held = |v: f64| set.binary_search_by(|s| s.total_cmp(&v)).is_ok();
    let found = |v: f64| !v.is_nan() && (held(v) || (v == 0.0 && held(-v)));
    Ok(super::unary::test(ev, &x, |v| found(v) != invert)?.into())
}

fn clamp(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let (low, high) = (a.optional_operand(1)?, a.optional_operand(2)?);
    if low.is_none() && high.is_none() {
        return refuse("clamp needs min or max");
    }
    let given = [Some((x.clone(), false)), low.clone(), high.clone()].into_iter().flatten().collect::<Vec<_>>();
    let dtype = promote(given.iter().map(|(t, number)| (t, *number)));
    let bound = |operand: Option<(Tensor, bool)>, none: f64| {
        operand.map_or_else(|| Tensor::scalar(Dtype::F64, none), |operand| fit(operand, dtype))
    };
    let (low, high) = (bound(low, f64::NEG_INFINITY), bound(high, f64::INFINITY));
    Ok(ev.choose([&x, &low, &high], dtype, clamped)?.into())
}

fn limit(ev: &mut Eval, a: &Args, below: bool) -> Result<Value> {
    let ([x, bound], dtype) = a.operands([0, 1])?;
    let none = Tensor::scalar(Dtype::F64, if below { f64::INFINITY } else { f64::NEG_INFINITY });
    let xs = if below { [&x, &bound, &none] } else { [&x, &none, &bound] };
    Ok(ev.choose(xs, dtype, clamped)?.into())
}

/// At a limit the derivative still passes.
fn clamped([x, low, high]: [f64; 3]) -> (f64, [f64; 3]) {
    if x.is_nan() || low.is_nan() || high.is_nan() {
        return (f64::NAN, [0.0; 3]);
    }
    let value = if x < low { low.min(high) } else { x.min(high) };
    let (below, above) = (x < low && low < high, x > high || high < low);
    (value, [flag(x >= low && x <= high), flag(below), flag(above)])
}

/// Where operand `which[0]` is true operand `which[1]`, elsewhere operand `which[2]`.
fn select(ev: &mut Eval, a: &Args, which: [usize; 3], dtype: Option<Dtype>) -> Result<Value> {
    let condition = a.tensor(which[0])?;
    if condition.dtype != Dtype::Bool {
        return refuse(format!("{} must be a bool tensor, not {:?}", a.params[which[0]], condition.dtype));
    }
    let ([yes, no], common) = a.operands([which[1], which[2]])?;
    let dtype = dtype.unwrap_or(common);
    let f = |[c, yes, no]: [f64; 3]| {
        if c != 0.0 { (dtype.cast(yes), [0.0, 1.0, 0.0]) } else { (dtype.cast(no), [0.0, 0.0, 1.0]) }
    };
    Ok(ev.choose([&condition, &yes, &no], dtype, f)?.into())
}

fn lerp(ev: &mut Eval, a: &Args) -> Result<Value> {
    let ([x, end, w], dtype) = a.operands([0, 1, 2])?;
    Ok(ev.pointwise([&x, &end, &w], dtype, |[x, e, w]| (x + w * (e - x), [1.0 - w, w, e - x]))?.into())
}

fn addcmul(ev: &mut Eval, a: &Args) -> Result<Value> {
    let ([x, s, t], dtype) = a.operands([0, 1, 2])?;
    let v = a.float(3, 1.0)?;
    Ok(ev.pointwise([&x, &s, &t], dtype, |[x, s, t]| (x + v * s * t, [1.0, v * t, v * s]))?.into())
}

fn addcdiv(ev: &mut Eval, a: &Args) -> Result<Value> {
    let ([x, s, t], dtype) = a.operands([0, 1, 2])?;
    let v = a.float(3, 1.0)?;
    Ok(ev.pointwise([&x, &s, &t], dtype.float(), |[x, s, t]| (x + v * s / t, [1.0, v / t, -v * s / (t * t)]))?.into())
}
