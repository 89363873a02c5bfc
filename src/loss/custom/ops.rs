//! The operations a custom loss may use: which names mean which, and what each takes.

use super::args::Args;
use super::eval::Eval;
use super::graph::NodeKind;
use super::program::Expr;
use super::value::{Value, refuse};
use super::{
    binary, create, distance, einsum, functional, join, layout, lines, products, python, reduce, scatter, select, unary,
};
use crate::error::Result;

/// Value and derivative of a function of one number.
pub type Curve = fn(f64) -> (f64, f64);
/// Value and both derivatives of a function of two numbers.
pub type Surface = fn([f64; 2]) -> (f64, [f64; 2]);

#[derive(Clone, Copy)]
pub enum Run {
    /// Cell by cell; integers become floats.
    Smooth(Curve),
    /// Cell by cell; the dtype stays.
    Same(Curve),
    /// As `Same`, and flat wherever the derivative is zero.
    Flat(Curve),
    /// Cell by cell into bools.
    Test(fn(f64) -> bool),
    /// Two operands cell by cell, in their common dtype.
    Pair(Surface),
    /// As `Pair`, where one operand is chosen and the other has the derivative zero.
    Choice(Surface),
    /// As `Pair`; integers become floats.
    SmoothPair(Surface),
    /// Two operands cell by cell into bools.
    Compare(fn(f64, f64) -> bool),
    Call(fn(&mut Eval, &Args) -> Result<Value>),
}

pub struct Op {
    pub name: &'static str,
    /// Parameters in torch's order; `*name` takes all further positional arguments as a list.
    pub params: &'static str,
    pub run: Run,
}

/// An operation that is a function of its arguments as a whole.
pub const fn call(name: &'static str, params: &'static str, f: fn(&mut Eval, &Args) -> Result<Value>) -> Op {
    Op { name, params, run: Run::Call(f) }
}

const FAMILIES: [&[Op]; 14] = [
    unary::OPS,
    binary::OPS,
    reduce::OPS,
    lines::OPS,
    layout::OPS,
    select::OPS,
    join::OPS,
    create::OPS,
    products::OPS,
    einsum::OPS,
    scatter::OPS,
    functional::OPS,
    distance::OPS,
    python::OPS,
];

/// Where torch keeps its functions; what follows is the operation's name.
const NAMESPACES: [&str; 8] = [
    "torch.nn.functional.",
    "torch._C._nn.",
    "torch._C._special.special_",
    "torch._C._linalg.linalg_",
    "torch.functional.",
    "torch.special.",
    "torch.linalg.",
    "torch.",
];

/// Other names of the same thing.
const ALIASES: &[(&str, &str)] = &[
    ("_threshold", "threshold"),
    ("absolute", "abs"),
    ("arccos", "acos"),
    ("arccosh", "acosh"),
    ("arcsin", "asin"),
    ("arcsinh", "asinh"),
    ("arctan", "atan"),
    ("arctan2", "atan2"),
    ("arctanh", "atanh"),
    ("clip", "clamp"),
    ("concat", "cat"),
    ("concatenate", "cat"),
    ("divide", "div"),
    ("expit", "sigmoid"),
    ("fix", "trunc"),
    ("greater", "gt"),
    ("greater_equal", "ge"),
    ("less", "lt"),
    ("less_equal", "le"),
    ("log_sigmoid", "logsigmoid"),
    ("moveaxis", "movedim"),
    ("multiply", "mul"),
    ("negative", "neg"),
    ("nelement", "numel"),
    ("ndimension", "dim"),
    ("not_equal", "ne"),
    ("sgn", "sign"),
    ("subtract", "sub"),
    ("swapaxes", "transpose"),
    ("swapdims", "transpose"),
    ("true_divide", "div"),
];

/// Python's operators by the names of the module `operator`; those that work in place begin with an `i`.
const OPERATORS: &[(&str, &str)] = &[
    ("abs", "abs"),
    ("add", "add"),
    ("and_", "bitwise_and"),
    ("eq", "eq"),
    ("floordiv", "floor_divide"),
    ("ge", "ge"),
    ("getitem", "getitem"),
    ("gt", "gt"),
    ("inv", "bitwise_not"),
    ("invert", "bitwise_not"),
    ("le", "le"),
    ("lt", "lt"),
    ("matmul", "matmul"),
    ("mod", "remainder"),
    ("mul", "mul"),
    ("ne", "ne"),
    ("neg", "neg"),
    ("or_", "bitwise_or"),
    ("pos", "positive"),
    ("pow", "pow"),
    ("sub", "sub"),
    ("truediv", "div"),
    ("xor", "bitwise_xor"),
];

/// Operations whose result may share memory with their first argument.
pub const VIEWS: &[&str] = &[
    "broadcast_to",
    "chunk",
    "contiguous",
    "cpu",
    "detach",
    "diagonal",
    "double",
    "expand",
    "expand_as",
    "flatten",
    "float",
    "getattr",
    "getitem",
    "long",
    "movedim",
    "narrow",
    "permute",
    "positive",
    "ravel",
    "reshape",
    "reshape_as",
    "select",
    "split",
    "squeeze",
    "t",
    "to",
    "transpose",
    "type_as",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
    "view_as",
];

/// Operations whose result has no derivative, beside those that make constants, bools and Python's numbers.
const FLAT: &[&str] = &[
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "bool",
    "count_nonzero",
    "detach",
    "dim",
    "int",
    "is_floating_point",
    "isclose",
    "isin",
    "long",
    "nonzero",
    "numel",
    "size",
];

/// Whether no derivative passes through this operation, whatever the values are.
pub fn ends_derivative(op: &Op, args: &[Expr]) -> bool {
    let constant = |family: &[Op]| family.iter().any(|o| o.name == op.name);
    match op.run {
        Run::Test(_) | Run::Compare(_) => true,
        _ if op.name == "getattr" => {
            !matches!(args.get(1), Some(Expr::Text(name)) if matches!(name.as_str(), "values" | "T" | "mT"))
        }
        _ => FLAT.contains(&op.name) || constant(create::OPS) || constant(python::OPS),
    }
}

pub struct Found {
    pub op: &'static Op,
    /// It changes its first argument.
    pub in_place: bool,
}

/// The name among `operations` of what a node's target means.
pub fn name_of(kind: NodeKind, target: &str) -> Option<&'static str> {
    find(kind, target).map(|found| found.op.name)
}

/// The operation a node's target means, if it is allowed.
pub fn find(kind: NodeKind, target: &str) -> Option<Found> {
    if (kind, target) == (NodeKind::Method, "where") {
        return named("Tensor.where").map(|op| Found { op, in_place: false });
    }
    if kind == NodeKind::Method {
        let in_place = target.ends_with('_') && !target.ends_with("__");
        return named(target.strip_suffix('_').filter(|_| in_place).unwrap_or(target))
            .filter(|op| !op.name.contains('.'))
            .map(|op| Found { op, in_place });
    }
    if let "getattr" | "builtins.getattr" = target {
        return named("getattr").map(|op| Found { op, in_place: false });
    }
    if target.starts_with("math.") {
        return named(target).map(|op| Found { op, in_place: false });
    }
    if let Some(operator) = target.strip_prefix("operator.").or(target.strip_prefix("_operator.")) {
        let find = |name: &str| OPERATORS.iter().find(|(from, _)| *from == name);
        let (found, in_place) = match find(operator) {
            Some(found) => (found, false),
            None => (find(operator.strip_prefix('i')?).or(find(&format!("{}_", &operator[1..])))?, true),
        };
        return named(found.1).map(|op| Found { op, in_place });
    }
    let name = NAMESPACES.iter().find_map(|n| target.strip_prefix(n))?;
    let in_place = name.ends_with('_');
    named(name.trim_end_matches('_'))
        .filter(|op| !op.name.contains('.') && !matches!(op.name, "getattr" | "getitem"))
        .map(|op| Found { op, in_place })
}

fn named(name: &str) -> Option<&'static Op> {
    let name = ALIASES.iter().find(|(from, _)| *from == name).map_or(name, |(_, to)| to);
    FAMILIES.iter().flat_map(|ops| ops.iter()).find(|op| op.name == name)
}

/// Every operation, without other names for the same.
pub fn operations() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|ops| ops.iter()).map(|op| op.name).collect()
}

/// For the error that lists them.
pub fn allowed() -> String {
    let mut names = operations();
    names.extend(ALIASES.iter().map(|(from, _)| *from));
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// Does the operation on its arguments.
pub fn run(ev: &mut Eval, op: &'static Op, args: &Args) -> Result<Value> {
    Ok(match op.run {
        Run::Call(call) => call(ev, args)?,
        _ if args.values.iter().all(|v| v.number().is_some()) => python::numbers(op, args)?,
        Run::Smooth(f) => {
            let x = args.tensor(0)?;
            ev.map(&x, x.dtype.float(), f)?.into()
        }
        Run::Same(f) => {
            let x = args.tensor(0)?;
            ev.map(&x, x.dtype, f)?.into()
        }
        Run::Flat(f) => {
            let x = args.tensor(0)?;
            ev.sieve(&x, x.dtype, f)?.into()
        }
        Run::Test(f) => {
            let x = args.tensor(0)?;
            unary::test(ev, &x, f)?.into()
        }
        Run::Pair(f) => {
            let ([a, b], dtype) = args.operands([0, 1])?;
            ev.pointwise([&a, &b], dtype, f)?.into()
        }
        Run::Choice(f) => {
            let ([a, b], dtype) = args.operands([0, 1])?;
            ev.choose([&a, &b], dtype, f)?.into()
        }
        Run::SmoothPair(f) => {
            let ([a, b], dtype) = args.operands([0, 1])?;
            ev.pointwise([&a, &b], dtype.float(), f)?.into()
        }
        Run::Compare(f) => {
            let ([a, b], _) = args.operands([0, 1])?;
            binary::compare(ev, &a, &b, f)?.into()
        }
    })
}

/// `reduction` of a loss in torch.nn.functional.
pub fn reduction(text: Option<&str>) -> Result<&str> {
    match text.unwrap_or("mean") {
        known @ ("mean" | "sum" | "none") => Ok(known),
        other => refuse(format!("reduction {other:?} is not allowed; allowed are mean, sum, none")),
    }
}
