//! Python's own numbers: what stands between sizes and constants in a graph, and the module `math`.

use super::args::Args;
use super::eval::Eval;
use super::ops::{Op, Run};
use super::value::{Dtype, Value, refuse};
use crate::error::Result;

const fn math(name: &'static str, f: fn(&mut Eval, &Args) -> Result<Value>) -> Op {
    Op { name, params: "x y", run: Run::Call(f) }
}

pub const OPS: &[Op] = &[
    math("math.sqrt", |_, a| one(a, f64::sqrt)),
    math("math.exp", |_, a| one(a, f64::exp)),
    math("math.expm1", |_, a| one(a, f64::exp_m1)),
    math("math.log", |_, a| {
        if !a.given(1) {
            return one(a, f64::ln);
        }
        real(number(a, 0)?.ln() / number(a, 1)?.ln())
    }),
    math("math.log2", |_, a| one(a, f64::log2)),
    math("math.log10", |_, a| one(a, f64::log10)),
    math("math.log1p", |_, a| one(a, f64::ln_1p)),
    math("math.sin", |_, a| one(a, f64::sin)),
    math("math.cos", |_, a| one(a, f64::cos)),
    math("math.tan", |_, a| one(a, f64::tan)),
    math("math.atan", |_, a| one(a, f64::atan)),
    math("math.sinh", |_, a| one(a, f64::sinh)),
    math("math.cosh", |_, a| one(a, f64::cosh)),
    math("math.tanh", |_, a| one(a, f64::tanh)),
    math("math.erf", |_, a| one(a, libm::erf)),
    math("math.erfc", |_, a| one(a, libm::erfc)),
    math("math.lgamma", |_, a| one(a, libm::lgamma)),
    math("math.fabs", |_, a| one(a, f64::abs)),
    math("math.pow", |_, a| real(number(a, 0)?.powf(number(a, 1)?))),
    math("math.hypot", |_, a| real(number(a, 0)?.hypot(number(a, 1)?))),
    math("math.atan2", |_, a| real(number(a, 0)?.atan2(number(a, 1)?))),
    math("math.floor", |_, a| whole(number(a, 0)?.floor())),
    math("math.ceil", |_, a| whole(number(a, 0)?.ceil())),
    math("math.trunc", |_, a| whole(number(a, 0)?.trunc())),
    math("math.isnan", |_, a| Ok(Value::Bool(number(a, 0)?.is_nan()))),
    math("math.isinf", |_, a| Ok(Value::Bool(number(a, 0)?.is_infinite()))),
    math("math.isfinite", |_, a| Ok(Value::Bool(number(a, 0)?.is_finite()))),
];

/// A number, or the value of a tensor of one element, whose derivative ends here.
fn number(a: &Args, i: usize) -> Result<f64> {
    let (t, _) = a.operand(i)?;
    t.item().map_or_else(|| refuse(format!("a tensor of shape {:?} is no number", t.shape)), Ok)
}

fn one(a: &Args, f: fn(f64) -> f64) -> Result<Value> {
    let x = number(a, 0)?;
    let y = f(x);
    if y.is_nan() && !x.is_nan() { refuse(format!("{x} is outside the function's domain")) } else { real(y) }
}

fn real(x: f64) -> Result<Value> {
    Ok(Value::Float(x))
}

fn whole(x: f64) -> Result<Value> {
    if x.abs() <= super::value::MAX_INT {
        Ok(Value::Int(x as i64))
    } else {
        refuse(format!("{x} has no integer value"))
    }
}

/// An operation on numbers alone.
pub fn numbers(op: &Op, a: &Args) -> Result<Value> {
    let value = |i: usize| a.get(i);
    match (op.run, a.values.len()) {
        (Run::Compare(f), _) => {
            let (x, y) = (a.float(0, 0.0)?, a.float(1, 0.0)?);
            Ok(Value::Bool(f(x, y)))
        }
        (Run::Pair(_) | Run::Choice(_), _) => arithmetic(op.name, value(0), value(1)),
        (Run::Same(f) | Run::Flat(f), _) => {
            let Some((dtype, x)) = value(0).number() else { return refuse("a number is needed") };
            if dtype.is_float() { real(f(x).0) } else { whole(f(x).0) }
        }
        _ => refuse("a tensor is needed"),
    }
}

/// Two Python numbers: integers stay integers but for `/`.
pub fn arithmetic(name: &str, a: &Value, b: &Value) -> Result<Value> {
    let (Some((kind, x)), Some((other, y))) = (a.number(), b.number()) else { return refuse("numbers are needed") };
    if matches!(name, "div" | "floor_divide" | "remainder") && y == 0.0 {
        return refuse("division by zero");
    }
    let result = match name {
        "add" => x + y,
        "sub" => x - y,
        "mul" => x * y,
        "div" => return real(x / y),
        "floor_divide" => (x / y).floor(),
        "remainder" => x - (x / y).floor() * y,
        "pow" if x == 0.0 && y < 0.0 => return refuse("division by zero"),
        "pow" => x.powf(y),
        "maximum" => x.max(y),
        "minimum" => x.min(y),
        _ => return refuse("a tensor is needed"),
    };
    if kind.max(other) < Dtype::F32 && !(name == "pow" && y < 0.0) { whole(result) } else { real(result) }
}
