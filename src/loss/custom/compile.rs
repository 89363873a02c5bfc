//! From a graph as it was sent to a program: every name, reference, operation and argument list checked once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::bind::bind;
use super::graph::{Arg, Graph, Input, Node, NodeKind};
use super::ops::{self, VIEWS};
use super::program::{Expr, Program, Step};
use super::value::refuse;
use crate::error::{Error, Result};

pub const MAX_NODES: usize = 2000;
const MAX_INPUTS: usize = 16;
const MAX_METRICS: usize = 64;
/// Arguments of all nodes together, those in lists among them.
const MAX_ARGS: usize = 20_000;
/// As torch refuses to go back from a loss that requires no gradient.
pub const NO_DERIVATIVE: &str = "the loss does not depend on logprobs, or only through what has no derivative, such as \
                                 detach, comparisons and integers";
/// How much of a name an error repeats.
const SHOWN: usize = 80;

/// The program of this graph under this id.
///
/// # Errors
/// The user's: an input, node or operation that is not allowed, named together with what is.
pub fn compile(id: &str, graph: &Graph) -> Result<Program> {
    check_inputs(&graph.inputs)?;
    if graph.nodes.len() > MAX_NODES {
        return refuse(format!("the graph has {} nodes; the limit is {MAX_NODES}", graph.nodes.len()));
    }
    let total: usize =
        graph.nodes.iter().flat_map(|n| n.args.iter().chain(n.kwargs.iter().map(|k| &k.1))).map(size).sum();
    if total > MAX_ARGS {
        return refuse(format!("the graph's nodes have {total} arguments; the limit is {MAX_ARGS}"));
    }
    let Some((output, body)) = graph.nodes.split_last().filter(|(last, _)| last.kind == NodeKind::Output) else {
        return refuse("the graph must end with its output node");
    };
    let (placeholders, body) = body.split_at(graph.inputs.len().min(body.len()));
    let mut names = Names::default();
    check_placeholders(&graph.inputs, placeholders, &mut names)?;
    let mut steps = Vec::with_capacity(body.len());
    for node in body {
        let step = step(node, &mut names).map_err(|e| e.context(place(node)))?;
        steps.push(step);
    }
    let (loss, metrics) = results(output, &names).map_err(|e| e.context(place(output)))?;
    finish(id, graph, steps, loss, metrics)
}

fn size(arg: &Arg) -> usize {
    match arg {
        Arg::List(v) | Arg::Tuple(v) => 1 + v.iter().map(size).sum::<usize>(),
        Arg::Dict(v) => 1 + v.iter().map(|(_, a)| size(a)).sum::<usize>(),
        _ => 1,
    }
}

/// `node "x" (call_method sum)`.
fn place(node: &Node) -> String {
    let kind = match node.kind {
        NodeKind::Placeholder => "placeholder",
        NodeKind::Function => "call_function",
        NodeKind::Method => "call_method",
        NodeKind::Output => "output",
    };
    format!("node {:?} ({kind} {})", short(&node.name), short(&node.target))
}

pub fn short(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

fn check_inputs(inputs: &[Input]) -> Result<()> {
    if !(1..=MAX_INPUTS).contains(&inputs.len()) {
        return refuse(format!("inputs: there are {}; 1 to {MAX_INPUTS} are allowed", inputs.len()));
    }
    let first = &inputs[0];
    if first.name != "logprobs" || !(1..=2).contains(&first.rank) {
        return refuse(format!(
            "inputs: the first must be logprobs of rank 1 or 2, not {:?} of rank {}",
            short(&first.name),
            first.rank
        ));
    }
    let mut seen = HashSet::new();
    for input in inputs {
        let mut chars = input.name.chars();
        let good = chars.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_')
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && input.name.len() <= 64;
        if !good {
            return refuse(format!(
                "inputs: {:?} is no name: 1 to 64 of a-z, 0-9 and _ are allowed, no digit first",
                short(&input.name)
            ));
        }
        if input.rank > 2 {
            return refuse(format!("inputs: {:?} has rank {}; 0, 1 and 2 are allowed", input.name, input.rank));
        }
        if !seen.insert(&input.name) {
            return refuse(format!("inputs: {:?} stands there twice", input.name));
        }
    }
    Ok(())
}

fn check_placeholders(inputs: &[Input], nodes: &[Node], names: &mut Names) -> Result<()> {
    let fits = |(input, node): (&Input, &Node)| node.kind == NodeKind::Placeholder && node.target == input.name;
    if inputs.len() != nodes.len() || !inputs.iter().zip(nodes).all(fits) {
        let wanted: Vec<&str> = inputs.iter().map(|i| i.name.as_str()).collect();
        return refuse(format!("the graph must begin with the placeholders {}, in this order", wanted.join(", ")));
    }
    nodes.iter().try_for_each(|node| names.add(&node.name, None).map_err(|e| e.context(place(node))))
}

/// What each name stands for at this point of the graph.
#[derive(Default)]
pub struct Names {
    slots: HashMap<String, Named>,
    /// Slots given away.
    count: usize,
}

struct Named {
    slot: usize,
    /// Tensors of one group may share memory.
    group: usize,
    /// The name of the operation that changed what it stands for.
    changed: Option<String>,
}

impl Names {
    /// The next slot's name; `view_of` is the name of a tensor whose memory it may share.
    fn add(&mut self, name: &str, view_of: Option<&str>) -> Result<()> {
        let slot = self.count;
        let group = view_of.and_then(|n| self.slots.get(n)).map_or(slot, |n| n.group);
        self.count += 1;
        let named = Named { slot, group, changed: None };
        match self.slots.insert(name.to_owned(), named) {
            None => Ok(()),
            Some(_) => refuse("another node has this name"),
        }
    }

    pub fn slot(&self, name: &str) -> Result<usize> {
        match self.slots.get(name) {
            Some(Named { changed: Some(by), .. }) => refuse(format!(
                "{:?} shares memory with what {:?} changed in place, which is not followed here; make a copy first",
                short(name),
                short(by)
            )),
            Some(named) => Ok(named.slot),
            None => refuse(format!("{:?} is not the name of an earlier node", short(name))),
        }
    }

    /// `by`, the newest name, is what `target` is from now on. Other names of the same memory are not followed.
    fn change(&mut self, target: &str, by: &str) {
        let Some((group, slot)) = self.slots.get(target).zip(self.slots.get(by)).map(|(t, b)| (t.group, b.slot)) else {
            return;
        };
        for (name, named) in &mut self.slots {
            if name == target || name == by {
                named.slot = slot;
            } else if named.group == group {
                named.changed = Some(by.to_owned());
            }
        }
    }
}

fn step(node: &Node, names: &mut Names) -> Result<Step> {
    if !matches!(node.kind, NodeKind::Function | NodeKind::Method) {
        return refuse("only call_function and call_method may stand between the placeholders and the output");
    }
    let Some(found) = ops::find(node.kind, &node.target) else {
        return refuse(format!("this operation is not allowed; allowed are {}", ops::allowed()));
    };
    let args = bind(found.op, node, names)?;
    let target = if let Some(Arg::Ref(name)) = node.args.first() { Some(name.as_str()) } else { None };
    let shares = found.in_place || VIEWS.contains(&found.op.name);
    names.add(&node.name, target.filter(|_| shares))?;
    if found.in_place {
        match target {
            Some(target) => names.change(target, &node.name),
            None => return refuse("an operation in place needs the tensor that it changes as its first argument"),
        }
    }
    Ok(Step { place: place(node), op: found.op, args, slot: names.count - 1, last_uses: Vec::new() })
}

/// The slots of the loss and of each metric.
type Results = (usize, Vec<(Arc<str>, usize)>);

fn results(output: &Node, names: &Names) -> Result<Results> {
    let shape = || Error::user("the output must be (loss, metrics): a node and a dict of nodes");
    let [Arg::Tuple(pair) | Arg::List(pair)] = &output.args[..] else { return Err(shape()) };
    let [Arg::Ref(loss), Arg::Dict(metrics)] = &pair[..] else { return Err(shape()) };
    if metrics.len() > MAX_METRICS {
        return refuse(format!("{} metrics; the limit is {MAX_METRICS}", metrics.len()));
    }
    let mut found: Vec<(Arc<str>, usize)> = Vec::with_capacity(metrics.len());
    for (name, value) in metrics {
        let inner = name.strip_prefix("custom/").and_then(|n| n.strip_suffix(":sum").or(n.strip_suffix(":mean")));
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_./-".contains(c);
        if !inner.is_some_and(|n| (1..=64).contains(&n.len()) && n.chars().all(allowed)) {
            return refuse(format!(
                "metric {:?} must be custom/NAME:sum or custom/NAME:mean, NAME being 1 to 64 of a-z 0-9 _ . / -",
                short(name)
            ));
        }
        let Arg::Ref(value) = value else { return refuse(format!("metric {name:?} must be a node")) };
        found.push((name.as_str().into(), names.slot(value)?));
    }
    Ok((names.slot(loss)?, found))
}

/// Leaves out what nothing depends on, and notes after which step each value can go.
fn finish(id: &str, graph: &Graph, steps: Vec<Step>, loss: usize, metrics: Vec<(Arc<str>, usize)>) -> Result<Program> {
    let slots = graph.inputs.len() + steps.len();
    let mut needed = vec![false; slots];
    needed[loss] = true;
    metrics.iter().for_each(|(_, slot)| needed[*slot] = true);
    let mut reached = vec![false; slots];
    reached[0] = true;
    for step in &steps {
        let passes = !ops::ends_derivative(step.op, &step.args);
        reached[step.slot] = passes && step.args.iter().any(|a| a.refers(&|slot| reached[slot]));
    }
    if !reached[loss] {
        return refuse(NO_DERIVATIVE);
    }
    let kept: HashSet<usize> = metrics.iter().map(|(_, slot)| *slot).chain([loss]).collect();
    let mut seen = kept.clone();
    let mut live = Vec::with_capacity(steps.len());
    for mut step in steps.into_iter().rev() {
        if !needed[step.slot] {
            continue;
        }
        let mut used = Vec::new();
        step.args.iter().for_each(|a| a.slots(&mut used));
        for slot in used {
            needed[slot] = true;
            if seen.insert(slot) {
                step.last_uses.push(slot);
            }
        }
        live.push(step);
    }
    live.reverse();
    Ok(Program {
        id: id.to_owned(),
        name: short(&graph.name),
        inputs: graph.inputs.clone(),
        steps: live,
        slots,
        loss,
        metrics,
        graph: Arc::new(graph.clone()),
    })
}

impl Expr {
    /// Whether any slot it refers to is wanted.
    fn refers(&self, wanted: &impl Fn(usize) -> bool) -> bool {
        let mut used = Vec::new();
        self.slots(&mut used);
        used.into_iter().any(wanted)
    }
}
