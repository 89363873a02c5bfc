//! A node's arguments in the order of its operation's parameters.

use super::compile::{Names, short};
use super::graph::{Arg, Node};
use super::ops::Op;
use super::program::Expr;
use super::value::{Dtype, refuse};
use crate::error::Result;

/// Settings that change nothing here: there is one device, and nothing is written in place by a flag.
const SETTINGS: &[&str] = &[
    "_stacklevel",
    "copy",
    "device",
    "generator",
    "inplace",
    "layout",
    "memory_format",
    "non_blocking",
    "out",
    "pin_memory",
    "reduce",
    "requires_grad",
    "size_average",
];

/// Other names of parameters.
const SYNONYMS: &[(&str, &str)] = &[
    ("axis", "dim"),
    ("keepdims", "keepdim"),
    ("axes", "dims"),
    ("self", "input"),
    ("split_size", "split_size_or_sections"),
];

/// One expression for each parameter of `op`; what was not given is `None`.
pub fn bind(op: &Op, node: &Node, names: &Names) -> Result<Vec<Expr>> {
    let params: Vec<&str> = op.params.split_whitespace().collect();
    let mut bound: Vec<Option<Expr>> = vec![None; params.len()];
    for (i, arg) in node.args.iter().enumerate() {
        let Some(param) = params.get(i) else {
            return refuse(format!("{} arguments; it takes at most {} ({})", node.args.len(), params.len(), op.params));
        };
        if param.starts_with('*') {
            bound[i] = Some(rest(&node.args[i..], names)?);
            break;
        }
        bound[i] = Some(if op.name == "getitem" && i == 1 { index(arg, names)? } else { expr(arg, names)? });
    }
    for (name, arg) in &node.kwargs {
        let known = SYNONYMS.iter().find(|(from, _)| from == name).map_or(name.as_str(), |(_, to)| to);
        match params.iter().position(|p| p.trim_start_matches('*') == known) {
            Some(i) if bound[i].is_none() => bound[i] = Some(expr(arg, names)?),
            Some(_) => return refuse(format!("argument {:?} is given twice", short(name))),
            None => setting(name, arg, op)?,
        }
    }
    Ok(bound.into_iter().map(|e| e.unwrap_or(Expr::None)).collect())
}

/// What a `*name` parameter takes: all further arguments, or the one list they came in.
fn rest(args: &[Arg], names: &Names) -> Result<Expr> {
    match args {
        [list @ (Arg::List(_) | Arg::Tuple(_))] => expr(list, names),
        _ => Ok(Expr::List(args.iter().map(|a| expr(a, names)).collect::<Result<_>>()?)),
    }
}

/// An index: a list is one index, a tuple has one for each dimension.
fn index(arg: &Arg, names: &Names) -> Result<Expr> {
    let inner = expr(arg, names)?;
    Ok(if let Arg::List(_) = arg { Expr::List(vec![inner]) } else { inner })
}

fn setting(name: &str, arg: &Arg, op: &Op) -> Result<()> {
    if !SETTINGS.contains(&name) {
        return refuse(format!("argument {:?} is unknown; it takes {}", short(name), op.params.replace('*', "")));
    }
    let fine = match arg {
        Arg::None | Arg::Bool(false) | Arg::Setting => true,
        Arg::Text(text) => name == "device" && text == "cpu",
        _ => matches!(name, "_stacklevel" | "copy" | "non_blocking" | "requires_grad"),
    };
    if fine { Ok(()) } else { refuse(format!("argument {name:?} must be left out here")) }
}

fn expr(arg: &Arg, names: &Names) -> Result<Expr> {
    Ok(match arg {
        Arg::None => Expr::None,
        Arg::Bool(b) => Expr::Bool(*b),
        Arg::Int(i) => Expr::Int(*i),
        Arg::Float(x) => Expr::Float(*x),
        Arg::Text(s) => Expr::Text(s.clone()),
        Arg::Ref(name) => Expr::Slot(names.slot(name)?),
        Arg::List(list) | Arg::Tuple(list) => Expr::List(list.iter().map(|a| expr(a, names)).collect::<Result<_>>()?),
        Arg::Dict(_) => return refuse("only the output may hold a dict"),
        Arg::Slice(parts) => {
            let [start, stop, step] = &**parts;
            Expr::Slice(Box::new([expr(start, names)?, expr(stop, names)?, expr(step, names)?]))
        }
        Arg::Ellipsis => Expr::Ellipsis,
        Arg::Dtype(name) => Expr::Dtype(Dtype::parse(name)?),
        Arg::Setting => Expr::Setting,
    })
}
