//! Functions of one tensor, cell by cell, each with its derivative; at kinks the one torch takes.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10, PI, SQRT_2};

use super::args::Args;
use super::eval::Eval;
use super::ops::{Op, Run, call};
use super::value::{Dtype, Tensor, Value, refuse};
use crate::error::Result;

const fn smooth(name: &'static str, f: fn(f64) -> (f64, f64)) -> Op {
    Op { name, params: "input", run: Run::Smooth(f) }
}

const fn same(name: &'static str, f: fn(f64) -> (f64, f64)) -> Op {
    Op { name, params: "input", run: Run::Same(f) }
}

/// Flat wherever its derivative is zero.
const fn flat(name: &'static str, f: fn(f64) -> (f64, f64)) -> Op {
    Op { name, params: "input", run: Run::Flat(f) }
}

const fn check(name: &'static str, f: fn(f64) -> bool) -> Op {
    Op { name, params: "input", run: Run::Test(f) }
}

pub const OPS: &[Op] = &[
    smooth("exp", |x| (x.exp(), x.exp())),
    smooth("exp2", |x| (x.exp2(), x.exp2() * LN_2)),
    smooth("expm1", |x| (x.exp_m1(), x.exp())),
    smooth("log", |x| (x.ln(), x.recip())),
    smooth("log2", |x| (x.log2(), (x * LN_2).recip())),
    smooth("log10", |x| (x.log10(), (x * LN_10).recip())),
    smooth("log1p", |x| (x.ln_1p(), (1.0 + x).recip())),
    smooth("sqrt", |x| (x.sqrt(), 0.5 / x.sqrt())),
    smooth("rsqrt", |x| (x.sqrt().recip(), -0.5 / (x * x.sqrt()))),
    smooth("reciprocal", |x| (x.recip(), -x.powi(-2))),
    smooth("sigmoid", |x| (sigmoid(x), sigmoid(x) * sigmoid(-x))),
    smooth("logsigmoid", |x| (-softplus(-x), sigmoid(-x))),
    smooth("tanh", |x| (x.tanh(), 1.0 - x.tanh().powi(2))),
    smooth("sin", |x| (x.sin(), x.cos())),
    smooth("cos", |x| (x.cos(), -x.sin())),
    smooth("tan", |x| (x.tan(), 1.0 + x.tan().powi(2))),
    smooth("asin", |x| (x.asin(), (1.0 - x * x).sqrt().recip())),
    smooth("acos", |x| (x.acos(), -(1.0 - x * x).sqrt().recip())),
    smooth("atan", |x| (x.atan(), (1.0 + x * x).recip())),
    smooth("sinh", |x| (x.sinh(), x.cosh())),
    smooth("cosh", |x| (x.cosh(), x.sinh())),
    smooth("asinh", |x| (x.asinh(), (x * x + 1.0).sqrt().recip())),
    smooth("acosh", |x| (x.acosh(), (x * x - 1.0).sqrt().recip())),
    smooth("atanh", |x| (x.atanh(), (1.0 - x * x).recip())),
    smooth("erf", |x| (libm::erf(x), FRAC_2_SQRT_PI * (-x * x).exp())),
    smooth("erfc", |x| (libm::erfc(x), -FRAC_2_SQRT_PI * (-x * x).exp())),
    smooth("lgamma", |x| (libm::lgamma(x), digamma(x))),
    smooth("sinc", |x| {
        let p = PI * x;
        if x == 0.0 { (1.0, 0.0) } else { (p.sin() / p, (p.cos() - p.sin() / p) / x) }
    }),
    smooth("entr", |x| if x == 0.0 { (0.0, f64::INFINITY) } else { (-x * x.ln(), -x.ln() - 1.0) }),
    smooth("silu", |x| (x * sigmoid(x), sigmoid(x) * (1.0 + x * sigmoid(-x)))),
    smooth("mish", |x| {
        let t = softplus(x).tanh();
        (x * t, t + x * (1.0 - t * t) * sigmoid(x))
    }),
    smooth("softsign", |x| (x / (1.0 + x.abs()), (1.0 + x.abs()).powi(-2))),
    smooth("tanhshrink", |x| (x - x.tanh(), x.tanh().powi(2))),
    smooth("selu", |x| {
        const SCALE: f64 = 1.050_700_987_355_480_5;
        const ALPHA: f64 = 1.673_263_242_354_377_2;
        if x > 0.0 { (SCALE * x, SCALE) } else { (SCALE * ALPHA * x.exp_m1(), SCALE * ALPHA * x.exp()) }
    }),
    call("hardsigmoid", "input", |ev, a| {
        let slope = |x: f64| if x > -3.0 && x < 3.0 { 1.0 / 6.0 } else { 0.0 };
        flat_float(ev, &a.tensor(0)?, |x| ((x / 6.0 + 0.5).clamp(0.0, 1.0), slope(x)))
    }),
    call("hardswish", "input", |ev, a| {
        let slope = |x: f64| match x {
            x if x < -3.0 => 0.0,
            x if x <= 3.0 => x / 3.0 + 0.5,
            _ => 1.0,
        };
        flat_float(ev, &a.tensor(0)?, |x| (x * (x / 6.0 + 0.5).clamp(0.0, 1.0), slope(x)))
    }),
    call("relu6", "input", |ev, a| flat_float(ev, &a.tensor(0)?, |x| (held(x, 0.0, 6.0), inside(x, 0.0, 6.0)))),
    flat("relu", |x| (if x.is_nan() { x } else { x.max(0.0) }, flag(x > 0.0))),
    same("neg", |x| (-x, -1.0)),
    same("positive", |x| (x, 1.0)),
    same("abs", |x| (x.abs(), sign(x))),
    flat("sign", |x| (sign(x), 0.0)),
    same("square", |x| (x * x, 2.0 * x)),
    flat("floor", |x| (x.floor(), 0.0)),
    flat("ceil", |x| (x.ceil(), 0.0)),
    flat("trunc", |x| (x.trunc(), 0.0)),
    same("frac", |x| (x.fract(), 1.0)),
    check("isnan", f64::is_nan),
    check("isinf", f64::is_infinite),
    check("isfinite", f64::is_finite),
    check("isposinf", |x| x == f64::INFINITY),
    check("isneginf", |x| x == f64::NEG_INFINITY),
    check("signbit", |x| x.is_sign_negative()),
    check("logical_not", |x| x == 0.0),
    call("bitwise_not", "input", bitwise_not),
    call("round", "input decimals", round),
    call("nan_to_num", "input nan posinf neginf", nan_to_num),
    call("logit", "input eps", logit),
    call("softplus", "input beta threshold", softplus_of),
    call("gelu", "input approximate", gelu),
    call("elu", "input alpha inplace", elu),
    call("celu", "input alpha inplace", celu),
    call("leaky_relu", "input negative_slope inplace", leaky_relu),
    call("hardtanh", "input min_val max_val inplace", hardtanh),
    call("threshold", "input threshold value inplace", threshold),
    call("softshrink", "input lambd", softshrink),
    call("hardshrink", "input lambd", hardshrink),
];

pub fn flag(b: bool) -> f64 {
    f64::from(u8::from(b))
}

pub fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x * 0.0
    }
}

pub fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { (1.0 + (-x).exp()).recip() } else { x.exp() / (1.0 + x.exp()) }
}

/// ln(1 + eˣ)
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `x` between the limits; NaN stays.
fn held(x: f64, low: f64, high: f64) -> f64 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

/// 1 strictly between the limits.
fn inside(x: f64, low: f64, high: f64) -> f64 {
    flag(x > low && x < high)
}

/// The derivative of lgamma: by recurrence up to 10, then the asymptotic series; by reflection below 0.
fn digamma(mut x: f64) -> f64 {
    if x == x.floor() && x <= 0.0 {
        return f64::NAN;
    }
    if x < 0.0 {
        return digamma(1.0 - x) - PI / (PI * x).tan();
    }
    let mut sum = 0.0;
    while x < 10.0 {
        sum -= x.recip();
        x += 1.0;
    }
    let y = (x * x).recip();
    sum + x.ln() - 0.5 / x - y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y * (1.0 / 240.0 - y / 132.0))))
}

pub fn test(ev: &mut Eval, x: &Tensor, f: impl Fn(f64) -> bool) -> Result<Tensor> {
    ev.map(x, Dtype::Bool, |x| (flag(f(x)), 0.0))
}

fn float(ev: &mut Eval, x: &Tensor, f: impl Fn(f64) -> (f64, f64)) -> Result<Value> {
    Ok(ev.map(x, x.dtype.float(), f)?.into())
}

fn flat_float(ev: &mut Eval, x: &Tensor, f: impl Fn(f64) -> (f64, f64)) -> Result<Value> {
    Ok(ev.sieve(x, x.dtype.float(), f)?.into())
}

fn bitwise_not(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    match x.dtype {
        Dtype::Bool => Ok(test(ev, &x, |x| x == 0.0)?.into()),
        Dtype::I64 => Ok(ev.map(&x, x.dtype, |x| (-x - 1.0, 0.0))?.into()),
        other => refuse(format!("~ takes bools and integers, not {other:?}")),
    }
}

fn round(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let scale = 10f64.powi(a.int(1)?.unwrap_or(0).clamp(-300, 300) as i32);
    Ok(ev.sieve(&x, x.dtype, |x| ((x * scale).round_ties_even() / scale, 0.0))?.into())
}

fn nan_to_num(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let most = if x.dtype == Dtype::F64 { f64::MAX } else { f64::from(f32::MAX) };
    let (nan, high, low) = (a.float(1, 0.0)?, a.float(2, most)?, a.float(3, -most)?);
    let f = |x: f64| match x {
        x if x.is_nan() => (nan, 0.0),
        f64::INFINITY => (high, 0.0),
        f64::NEG_INFINITY => (low, 0.0),
        x => (x, 1.0),
    };
    Ok(ev.map(&x, x.dtype, f)?.into())
}

fn logit(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    let eps = if a.given(1) { Some(a.float(1, 0.0)?) } else { None };
    flat_float(ev, &x, |x| {
        let (low, high) = eps.map_or((0.0, 1.0), |e| (e, 1.0 - e));
        let z = if eps.is_some() { held(x, low, high) } else { x };
        let slope = if eps.is_none() || (x >= low && x <= high) { (z * (1.0 - z)).recip() } else { 0.0 };
        ((z / (1.0 - z)).ln(), slope)
    })
}

fn softplus_of(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, beta, threshold) = (a.tensor(0)?, a.float(1, 1.0)?, a.float(2, 20.0)?);
    let f = |x: f64| if x * beta > threshold { (x, 1.0) } else { (softplus(x * beta) / beta, sigmoid(x * beta)) };
    float(ev, &x, f)
}

fn gelu(ev: &mut Eval, a: &Args) -> Result<Value> {
    let x = a.tensor(0)?;
    match a.text(1)?.unwrap_or("none") {
        "none" => float(ev, &x, |x| {
            let phi = 0.5 * libm::erfc(-x / SQRT_2);
            (x * phi, phi + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt())
        }),
        "tanh" => float(ev, &x, |x| {
            let k = (2.0 / PI).sqrt();
            let t = (k * (x + 0.044715 * x.powi(3))).tanh();
            let slope = 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
            (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + slope)
        }),
        other => refuse(format!("approximate {other:?} is not allowed; allowed are none, tanh")),
    }
}

fn elu(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, alpha) = (a.tensor(0)?, a.float(1, 1.0)?);
    float(ev, &x, |x| if x > 0.0 { (x, 1.0) } else { (alpha * x.exp_m1(), alpha * x.exp()) })
}

fn celu(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, alpha) = (a.tensor(0)?, a.float(1, 1.0)?);
    float(ev, &x, |x| if x > 0.0 { (x, 1.0) } else { (alpha * (x / alpha).exp_m1(), (x / alpha).exp()) })
}

fn leaky_relu(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, slope) = (a.tensor(0)?, a.float(1, 0.01)?);
    float(ev, &x, |x| if x > 0.0 { (x, 1.0) } else { (slope * x, slope) })
}

fn hardtanh(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, low, high) = (a.tensor(0)?, a.float(1, -1.0)?, a.float(2, 1.0)?);
    flat_float(ev, &x, |x| (held(x, low, high), inside(x, low, high)))
}

fn threshold(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, limit, value) = (a.tensor(0)?, a.float(1, 0.0)?, a.float(2, 0.0)?);
    Ok(ev.sieve(&x, x.dtype, |x| if x <= limit { (value, 0.0) } else { (x, 1.0) })?.into())
}

fn softshrink(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, l) = (a.tensor(0)?, a.float(1, 0.5)?);
    flat_float(ev, &x, |x| if x.abs() > l { (x - l * sign(x), 1.0) } else { (x * 0.0, 0.0) })
}

fn hardshrink(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, l) = (a.tensor(0)?, a.float(1, 0.5)?);
    flat_float(ev, &x, |x| if x.abs() <= l { (0.0, 0.0) } else { (x, 1.0) })
}
