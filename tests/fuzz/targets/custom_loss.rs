//! Uploaded losses: graphs of allowed operations drawn from the input's bytes, compiled, evaluated on a tiny datum.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tinderbox::command::{Datum, Loss, LossInputs, NamedInput, Numbers};
use tinderbox::loss::custom::graph::{Arg, Graph, Input, Node, NodeKind};
use tinderbox::loss::custom::{Program, compile, operations};
use tinderbox::loss::evaluate;

static OPERATIONS: LazyLock<Vec<&str>> = LazyLock::new(operations);
const OPERATORS: [&str; 12] =
    ["add", "sub", "mul", "truediv", "getitem", "neg", "pow", "lt", "matmul", "iadd", "setitem", "and_"];
const KEYWORDS: [&str; 10] = ["dim", "keepdim", "dtype", "value", "min", "max", "input", "other", "index", "reduction"];
const TEXTS: [&str; 6] = ["sum", "mean", "none", "ij,jk->ik", "i,i->", "shape"];
const DTYPES: [&str; 4] = ["float32", "int64", "bool", "float64"];
const NODES_MAX: usize = 24;

fuzz_target!(|bytes: &[u8]| {
    let mut draw = Draw(bytes);
    let two_dimensional = draw.one_of(2) == 1;
    let inputs = inputs(&mut draw, two_dimensional);
    let (length, k) = (draw.one_of(6) + 1, if two_dimensional { draw.one_of(4) + 1 } else { 1 });
    let datum = datum(&mut draw, &inputs, length, k, two_dimensional);
    let logprobs: Vec<f32> = (0..length * k).map(|_| draw.float() as f32).collect();
    let graph = graph(&mut draw, inputs);
    let Ok(program) = compile("fuzzed", &graph) else { return };
    evaluated(program, &datum, &logprobs);
});

/// Finite throughout, and the same twice.
fn evaluated(program: Program, datum: &Datum, logprobs: &[f32]) {
    let loss = Loss::Custom(program.into());
    let first = evaluate(&loss, datum, logprobs);
    let again = evaluate(&loss, datum, logprobs);
    match (first, again) {
        (Ok(a), Ok(b)) => {
            assert!(a.value.is_finite() && a.d_logprobs.iter().all(|d| d.is_finite()));
            assert_eq!(a.d_logprobs.len(), logprobs.len());
            assert_eq!((a.value.to_bits(), &a.d_logprobs), (b.value.to_bits(), &b.d_logprobs));
        }
        (Err(a), Err(b)) => assert_eq!(a.message, b.message),
        (a, b) => panic!("{a:?} and then {b:?}"),
    }
}

fn inputs(draw: &mut Draw, two_dimensional: bool) -> Vec<Input> {
    let first = Input { name: "logprobs".into(), rank: 1 + usize::from(two_dimensional) };
    let more = (0..draw.one_of(3)).map(|i| Input { name: format!("x{i}"), rank: draw.one_of(3) });
    [first].into_iter().chain(more).collect()
}

fn datum(draw: &mut Draw, inputs: &[Input], length: usize, k: usize, two_dimensional: bool) -> Datum {
    let named = inputs[1..].iter().map(|input| {
        let shape: Vec<usize> = (0..input.rank).map(|d| draw.size(if d == 0 { length } else { k })).collect();
        let count = shape.iter().product();
        let numbers = if draw.one_of(2) == 0 {
            Numbers::F32((0..count).map(|_| draw.float() as f32).collect())
        } else {
            Numbers::I64((0..count).map(|_| draw.int()).collect())
        };
        NamedInput { shape, numbers }
    });
    let named = named.collect();
    Datum {
        tokens: vec![1; length],
        targets: vec![1; length * k],
        k,
        two_dimensional,
        inputs: LossInputs { named, ..LossInputs::default() },
    }
}

/// Ends with the sum of its last node, so that most graphs come to a loss.
fn graph(draw: &mut Draw, inputs: Vec<Input>) -> Graph {
    let mut nodes: Vec<Node> =
        inputs.iter().map(|i| node(NodeKind::Placeholder, &i.name, &i.name, Vec::new(), Vec::new())).collect();
    while !draw.0.is_empty() && nodes.len() < NODES_MAX {
        let drawn = operation(draw, &nodes);
        nodes.push(drawn);
    }
    let last = Arg::Ref(nodes[nodes.len() - 1].name.clone());
    nodes.push(node(NodeKind::Method, "total", "sum", vec![last], Vec::new()));
    let metrics = vec![("custom/m:mean".into(), Arg::Ref("total".into()))];
    let results = Arg::Tuple(vec![Arg::Ref("total".into()), Arg::Dict(metrics)]);
    nodes.push(node(NodeKind::Output, "output", "output", vec![results], Vec::new()));
    Graph { name: "fuzzed".into(), inputs, nodes }
}

fn node(kind: NodeKind, name: &str, target: &str, args: Vec<Arg>, kwargs: Vec<(String, Arg)>) -> Node {
    Node { kind, name: name.into(), target: target.into(), args, kwargs }
}

fn operation(draw: &mut Draw, nodes: &[Node]) -> Node {
    let name = OPERATIONS[draw.one_of(OPERATIONS.len())];
    let (kind, target) = match draw.one_of(8) {
        0 => (NodeKind::Function, format!("operator.{}", OPERATORS[draw.one_of(OPERATORS.len())])),
        1..=3 => (NodeKind::Method, name.to_owned()),
        4 => (NodeKind::Method, format!("{name}_")),
        _ if name.starts_with("math.") => (NodeKind::Function, name.to_owned()),
        _ => (NodeKind::Function, format!("torch.{name}")),
    };
    let mut args = vec![draw.node(nodes)];
    args.extend((0..draw.one_of(4)).map(|_| draw.arg(nodes, 0)));
    let kwargs = (0..draw.one_of(6).saturating_sub(3))
        .map(|_| (KEYWORDS[draw.one_of(KEYWORDS.len())].to_owned(), draw.arg(nodes, 0)))
        .collect();
    node(kind, &format!("n{}", nodes.len()), &target, args, kwargs)
}

/// The input's bytes, spent one by one; zeros when they are used up.
struct Draw<'a>(&'a [u8]);

impl Draw<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn one_of(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    /// Mostly the expected size, sometimes another.
    fn size(&mut self, expected: usize) -> usize {
        if self.one_of(4) == 0 { self.one_of(7) } else { expected }
    }

    fn int(&mut self) -> i64 {
        match self.byte() {
            255 => i64::MAX,
            254 => i64::MIN,
            253 => 1 << 40,
            252 => 1 << 31,
            n => i64::from(n % 16) - 6,
        }
    }

    fn float(&mut self) -> f64 {
        match self.byte() {
            255 => f64::INFINITY,
            254 => f64::NEG_INFINITY,
            253 => f64::NAN,
            252 => 1e300,
            251 => 1e-300,
            n => (f64::from(n) - 120.0) / 16.0,
        }
    }

    fn node(&mut self, nodes: &[Node]) -> Arg {
        // The newest most often: chains reach deeper than stars.
        let back = if self.one_of(3) == 0 { self.one_of(nodes.len()) } else { 0 };
        Arg::Ref(nodes[nodes.len() - 1 - back].name.clone())
    }

    fn arg(&mut self, nodes: &[Node], depth: usize) -> Arg {
        match self.one_of(if depth < 2 { 14 } else { 10 }) {
            0..=2 => self.node(nodes),
            3 | 4 => Arg::Int(self.int()),
            5 => Arg::Float(self.float()),
            6 => Arg::Bool(self.one_of(2) == 1),
            7 => Arg::None,
            8 => Arg::Dtype(DTYPES[self.one_of(DTYPES.len())].into()),
            9 => Arg::Text(TEXTS[self.one_of(TEXTS.len())].into()),
            10 => Arg::Ellipsis,
            11 => Arg::Slice(Box::new([self.arg(nodes, 2), self.arg(nodes, 2), self.arg(nodes, 2)])),
            12 => Arg::List((0..self.one_of(5)).map(|_| self.arg(nodes, depth + 1)).collect()),
            _ => Arg::Tuple((0..self.one_of(5)).map(|_| self.arg(nodes, depth + 1)).collect()),
        }
    }
}
