//! Custom losses: every allowed operation against PyTorch's values and derivatives, and graphs that must be refused.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};
use tinderbox::command::{Datum, LossInputs, NamedInput, Numbers};
use tinderbox::error::{Error, Result};
use tinderbox::loss::DatumLoss;
use tinderbox::loss::custom::graph::{Arg, Graph, Input, Node, NodeKind};
use tinderbox::loss::custom::{Program, compile, name_of, operations};
use tinderbox::validate::custom_loss::graph;

#[derive(serde::Deserialize)]
struct Golden {
    logprobs: Vec<f32>,
    seeds: Vec<f64>,
    /// Shape, whether the values are floats, values.
    inputs: HashMap<String, (Vec<usize>, bool, Vec<f64>)>,
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    source: String,
    inputs: Vec<String>,
    /// Kind, name, target, args, kwargs.
    nodes: Vec<(String, String, String, Value, Value)>,
    result: String,
    shape: Vec<usize>,
    float: bool,
    total: f64,
    /// What is no number in JSON is its name.
    grad: Vec<Value>,
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

fn golden() -> Golden {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/custom_loss.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn program(inputs: Value, nodes: Value) -> Result<Program> {
    let body = json!({"session_id": "s", "custom_loss_seq_id": 0, "name": "f", "inputs": inputs,
        "graph": {"format": 1, "nodes": nodes}});
    let request = serde_json::from_value(body).map_err(|e| Error::user(e.to_string()))?;
    compile("id", &graph(&request)?)
}

pub fn datum(targets: usize, k: usize, named: Vec<NamedInput>) -> Datum {
    let inputs = LossInputs { named, ..LossInputs::default() };
    Datum { tokens: vec![1; targets / k], targets: vec![2; targets], k, two_dimensional: k > 1, inputs }
}

impl Case {
    /// The case's nodes between its placeholders and the sum over the seeds; sizes and kind of the result as metrics.
    fn program(&self, golden: &Golden) -> Result<Program> {
        let declared = |name: &String| match name.as_str() {
            "x" => json!({"name": "logprobs", "rank": 1}),
            "X" => json!({"name": "logprobs", "rank": 2}),
            other => json!({"name": other, "rank": golden.inputs[other].0.len()}),
        };
        let mut inputs: Vec<Value> = self.inputs.iter().map(declared).collect();
        inputs.push(json!({"name": "seeds", "rank": 1}));
        let mut nodes: Vec<Value> = inputs
            .iter()
            .zip(self.inputs.iter().chain([&"seeds".to_string()]))
            .map(|(input, name)| json!({"op": "placeholder", "name": name.to_lowercase(), "target": input["name"]}))
            .collect();
        nodes.extend(self.nodes.iter().map(|(kind, name, target, args, kwargs)| {
            json!({"op": format!("call_{kind}"), "name": name, "target": target, "args": args, "kwargs": kwargs})
        }));
        let method = |name: &str, target: &str, args: Value| json!({"op": "call_method", "name": name, "target": target, "args": args});
        let of = |name: &str| json!({"ref": name});
        let (x, result) = (of("x"), of(&self.result));
        nodes.extend([
            method("_flat", "reshape", json!([result, -1])),
            method("_wide", "double", json!([of("_flat")])),
            method("_weighted", "mul", json!([of("_wide"), of("seeds")])),
            method("_total", "sum", json!([of("_weighted")])),
            method("_none", "mul", json!([x, 0.0])),
            method("_nothing", "sum", json!([of("_none")])),
            method("_loss", "add", json!([of("_total"), of("_nothing")])),
            method("_rank", "dim", json!([result])),
            method("_kind", "is_floating_point", json!([result])),
        ]);
        let mut metrics = serde_json::Map::from_iter([
            ("custom/rank:sum".to_string(), of("_rank")),
            ("custom/kind:sum".to_string(), of("_kind")),
        ]);
        for d in 0..self.shape.len() {
            nodes.push(method(&format!("_size{d}"), "size", json!([result, d])));
            metrics.insert(format!("custom/size{d}:sum"), of(&format!("_size{d}")));
        }
        let output = json!([{"tuple": [of("_loss"), {"dict": metrics}]}]);
        nodes.push(json!({"op": "output", "name": "output", "target": "output", "args": output}));
        program(inputs.into(), nodes.into())
    }

    fn evaluate(&self, golden: &Golden) -> Result<DatumLoss> {
        let count: usize = self.shape.iter().product();
        let seeds = (0..count).map(|i| golden.seeds[i % golden.seeds.len()] as f32).collect();
        let named = self.inputs[1..].iter().map(|name| {
            let (shape, float, values) = &golden.inputs[name];
            let numbers = match float {
                true => Numbers::F32(values.iter().map(|x| *x as f32).collect()),
                false => Numbers::I64(values.iter().map(|x| *x as i64).collect()),
            };
            NamedInput { shape: shape.clone(), numbers }
        });
        let seeds = NamedInput { shape: vec![count], numbers: Numbers::F32(seeds) };
        let k = if self.inputs[0] == "X" { 2 } else { 1 };
        let datum = datum(golden.logprobs.len(), k, named.chain([seeds]).collect());
        self.program(golden)?.evaluate(&datum, &golden.logprobs)
    }

    /// What is said of a loss that PyTorch gives a derivative that is no number.
    fn refusal(&self) -> Option<String> {
        let (i, value) = self.grad.iter().map(number).enumerate().find(|(_, x)| !x.is_finite())?;
        let k = if self.inputs[0] == "X" { 2 } else { 1 };
        Some(format!("the derivative at position {} is {value},", i / k))
    }

    /// What is wrong with our result, if anything.
    fn fault(&self, golden: &Golden) -> Option<String> {
        let out = match (self.evaluate(golden), self.refusal()) {
            (Ok(out), None) => out,
            (Err(e), Some(refusal)) if e.message.contains(&refusal) => return None,
            (Err(e), refusal) => return Some(format!("{}; expected {refusal:?}", e.message)),
            (Ok(out), Some(refusal)) => return Some(format!("derivative {:?}, not \"{refusal}\"", out.d_logprobs)),
        };
        let metric = |name: &str| out.custom.iter().find(|(n, _)| &**n == name).map(|(_, x)| *x);
        let shape: Vec<f64> = (0..self.shape.len()).filter_map(|d| metric(&format!("custom/size{d}:sum"))).collect();
        let same = metric("custom/rank:sum") == Some(self.shape.len() as f64)
            && shape == self.shape.iter().map(|n| *n as f64).collect::<Vec<_>>()
            && metric("custom/kind:sum") == Some(f64::from(u8::from(self.float)));
        if !same {
            return Some(format!("shape or kind: {:?}, not {:?} float {}", out.custom, self.shape, self.float));
        }
        let close = |got: f64, want: f64| (got - want).abs() <= 1e-5 * want.abs().max(1.0);
        if !close(out.value, self.total) {
            return Some(format!("value {}, not {}", out.value, self.total));
        }
        let wrong = |(got, want): (&f32, &Value)| !close(f64::from(*got), number(want));
        let grads = out.d_logprobs.iter().zip(&self.grad);
        grads.into_iter().any(wrong).then(|| format!("derivative {:?}, not {:?}", out.d_logprobs, self.grad))
    }
}

#[test]
fn every_operation_has_pytorchs_value_shape_and_derivative() {
    let golden = golden();
    let faults: Vec<String> =
        golden.cases.iter().filter_map(|c| c.fault(&golden).map(|f| format!("{}\n      {f}", c.source))).collect();
    assert!(faults.is_empty(), "{} of {} cases:\n  {}", faults.len(), golden.cases.len(), faults.join("\n  "));
}

#[test]
fn every_allowed_operation_is_in_a_case() {
    let kind = |kind: &str| if kind == "method" { NodeKind::Method } else { NodeKind::Function };
    let nodes = golden().cases.into_iter().flat_map(|c| c.nodes);
    let mut used: BTreeSet<&str> = nodes.filter_map(|(k, _, target, ..)| name_of(kind(&k), &target)).collect();
    // Plain functions of numbers, and what changes nothing: tested by two of their kind.
    used.extend(operations().into_iter().filter(|name| name.starts_with("math.")));
    used.extend(["as_tensor", "empty_like", "fill", "ger", "int", "requires_grad", "scalar_tensor", "tensor", "type"]);
    used.extend(["numel", "vdot", "zero", "size", "dim", "is_floating_point"]);
    let missing: Vec<&str> = operations().into_iter().filter(|name| !used.contains(name)).collect();
    assert_eq!(missing, [""; 0]);
}

pub fn node(op: &str, name: &str, target: &str, args: Value) -> Value {
    json!({"op": op, "name": name, "target": target, "args": args})
}

pub fn of(name: &str) -> Value {
    json!({"ref": name})
}

/// A loss of logprobs alone: `nodes` between the placeholder `x` and the output of `loss`.
pub fn plain(nodes: &[Value], loss: &str) -> Result<Program> {
    let mut all = vec![node("placeholder", "x", "logprobs", json!([]))];
    all.extend_from_slice(nodes);
    all.push(node("output", "output", "output", json!([{"tuple": [of(loss), {"dict": {}}]}])));
    program(json!([{"name": "logprobs", "rank": 1}]), all.into())
}

#[track_caller]
pub fn refused(result: Result<impl Sized>, mentions: &[&str]) {
    let message = result.map(|_| ()).expect_err("it must be refused").message;
    assert!(mentions.iter().all(|m| message.contains(m)), "{message}");
}

#[test]
fn graphs_that_are_not_understood_are_refused_by_name() {
    let sum = |arg: Value| node("call_method", "loss", "sum", json!([arg]));
    let function = |target: &str, args: Value| vec![node("call_function", "loss", target, args)];
    for target in
        ["os.system", "builtins.eval", "torch.load", "torch.nn.functional.dropout", "torch.rand_like", "math.no"]
    {
        refused(plain(&function(target, json!([of("x")])), "loss"), &["\"loss\"", target, "log_softmax", "clamp"]);
    }
    refused(plain(&[node("call_method", "loss", "backward", json!([of("x")]))], "loss"), &["backward", "not allowed"]);
    refused(plain(&[node("get_attr", "loss", "weight", json!([]))], "loss"), &["get_attr", "call_method"]);
    refused(plain(&[node("call_module", "loss", "lin", json!([]))], "loss"), &["call_module"]);
    // Forward references, cycles, names twice.
    refused(plain(&[sum(of("later"))], "loss"), &["later", "earlier node"]);
    refused(plain(&[sum(of("loss"))], "loss"), &["earlier node"]);
    refused(plain(&[sum(of("x")), sum(of("x"))], "loss"), &["another node"]);
    // Wrong number, name or kind of arguments.
    refused(plain(&function("torch.exp", json!([of("x"), 1])), "loss"), &["at most 1"]);
    let kwarg = json!({"op": "call_method", "name": "loss", "target": "sum", "args": [of("x")], "kwargs": {"dims": 0}});
    refused(plain(&[kwarg], "loss"), &["\"dims\"", "keepdim"]);
    refused(plain(&function("torch.sum", json!([{"dict": {}}])), "loss"), &["dict"]);
    refused(plain(&function("torch.sum", json!([{"code": "x"}])), "loss"), &["code"]);
    let dtype = json!({"op": "call_method", "name": "loss", "target": "sum", "args": [of("x")],
        "kwargs": {"dtype": {"dtype": "int8"}}});
    refused(plain(&[dtype], "loss"), &["int8", "float32"]);
    // A loss that is none.
    refused(plain(&[node("call_method", "loss", "detach", json!([of("x")]))], "missing"), &["missing"]);
    refused(
        plain(&[node("call_function", "loss", "torch.zeros", json!([1]))], "loss"),
        &["does not depend on logprobs"],
    );
    let output = |args: Value| {
        let nodes = json!([node("placeholder", "x", "logprobs", json!([])), node("output", "output", "output", args)]);
        program(json!([{"name": "logprobs", "rank": 1}]), nodes)
    };
    refused(output(json!([of("x")])), &["(loss, metrics)"]);
    refused(output(json!([{"tuple": [of("x"), {"dict": {"loss:sum": of("x")}}]}])), &["loss:sum", "custom/NAME:sum"]);
    refused(output(json!([])), &["(loss, metrics)"]);
    refused(program(json!([{"name": "logprobs", "rank": 0}]), json!([])), &["rank 1 or 2"]);
    refused(program(json!([{"name": "logprobs", "rank": 1}, {"name": "A", "rank": 1}]), json!([])), &["\"A\""]);
    refused(program(json!([{"name": "logprobs", "rank": 1}]), json!([])), &["output"]);
}

#[test]
fn arguments_of_the_wrong_kind_fail_with_their_node() {
    let run = |nodes: &[Value]| plain(nodes, "loss")?.evaluate(&datum(4, 1, vec![]), &[-1.0, -2.0, -3.0, -4.0]);
    let one = |target: &str, args: Value| run(&[node("call_function", "loss", target, args)]);
    refused(one("torch.sum", json!([of("x"), "zero"])), &["\"loss\"", "torch.sum", "dim must be an int"]);
    refused(one("torch.sum", json!([of("x"), 7])), &["dim 7"]);
    refused(one("torch.sum", json!([[of("x")]])), &["input must be a tensor"]);
    refused(one("torch.clamp", json!([of("x"), "a"])), &["min must be a tensor or a number"]);
    refused(one("torch.reshape", json!([of("x"), [3, 5]])), &["[3, 5]", "4 elements"]);
    refused(one("operator.getitem", json!([of("x"), 4])), &["index 4"]);
    refused(one("torch.matmul", json!([of("x"), 2])), &["other must be a tensor"]);
    refused(one("torch.exp", json!([of("x")])), &["float scalar", "[4]"]);
    let exp = [
        node("call_function", "e", "math.exp", json!([of("x")])),
        node("call_function", "loss", "operator.add", json!([of("x"), of("e")])),
    ];
    refused(run(&exp), &["[4]", "no number"]);
    refused(one("torch.log", json!([of("x")])), &["[4]"]);
    let shift = node("call_method", "y", "mean", json!([of("x")]));
    refused(run(&[shift, node("call_function", "loss", "torch.log", json!([of("y")]))]), &["the loss is NaN"]);
    let zero = node("call_method", "z", "sum", json!([of("x")]));
    let shifted = node("call_function", "y", "operator.add", json!([of("z"), 10]));
    refused(
        run(&[zero, shifted, node("call_function", "loss", "torch.sqrt", json!([of("y")]))]),
        &["derivative at position 0", "inf"],
    );
}

#[test]
fn huge_graphs_and_tensors_are_refused_at_once() {
    let exp = Node {
        kind: NodeKind::Function,
        name: "n".into(),
        target: "torch.exp".into(),
        args: vec![Arg::Ref("n".into())],
        kwargs: vec![],
    };
    let inputs = vec![Input { name: "logprobs".into(), rank: 1 }];
    let million = Graph { name: "f".into(), inputs, nodes: vec![exp; 1_000_000] };
    refused(compile("id", &million), &["1000000 nodes", "2000"]);
    let many = vec![of("x"); 30_000];
    refused(plain(&[node("call_function", "loss", "torch.cat", json!([many]))], "loss"), &["30004 arguments", "20000"]);

    let run = |nodes: &[Value]| plain(nodes, "loss")?.evaluate(&datum(4, 1, vec![]), &[-1.0, -2.0, -3.0, -4.0]);
    let sum = |of_: &str| node("call_method", "loss", "sum", json!([of(of_)]));
    for (target, args) in [
        ("torch.zeros", json!([1_i64 << 40, 1_i64 << 40])),
        ("torch.zeros", json!([1_i64 << 40, 0])),
        ("torch.arange", json!([100_000_000])),
        ("torch.arange", json!([0, 1, 1e-300])),
        ("torch.nn.functional.pad", json!([of("x"), [i64::MAX, i64::MAX]])),
        ("torch.broadcast_to", json!([of("x"), [1_i64 << 40, 4]])),
        ("torch.tile", json!([of("x"), [i64::MAX, 2]])),
        ("torch.repeat_interleave", json!([of("x"), i64::MAX])),
        ("torch.diag", json!([of("x"), i64::MIN])),
        ("torch.roll", json!([of("x"), i64::MIN, 0])),
        ("torch.diff", json!([of("x"), i64::MAX])),
        ("torch.unsqueeze", json!([of("x"), i64::MAX])),
    ] {
        let big = node("call_function", "big", target, args);
        let mixed = node("call_method", "mixed", "sum", json!([of("big")]));
        let both = node("call_function", "y", "operator.add", json!([of("x"), of("mixed")]));
        assert!(run(&[big, mixed, both, sum("y")]).is_err() || target == "torch.roll", "{target}");
    }
    // x[:, None] - x, again and again: the shape grows with each.
    let grow = |i: usize, from: &str| {
        [
            node("call_method", &format!("u{i}"), "unsqueeze", json!([of(from), -1])),
            node("call_function", &format!("v{i}"), "operator.sub", json!([of(&format!("u{i}")), of("x")])),
        ]
    };
    let tower: Vec<Value> = (0..6)
        .flat_map(|i| grow(i, &if i == 0 { "x".into() } else { format!("v{}", i - 1) }))
        .chain([sum("v5")])
        .collect();
    refused(run(&tower), &["dimensions", "at most 4"]);
    // The same cells doubled 40 times.
    let double = |i: usize| {
        let from = if i == 0 { "x".to_string() } else { format!("d{}", i - 1) };
        node("call_function", &format!("d{i}"), "torch.cat", json!([[of(&from), of(&from)]]))
    };
    let doubled: Vec<Value> = (0..40).map(double).chain([sum("d39")]).collect();
    refused(run(&doubled), &["cells", "torch.cat"]);
}

/// A nonsensical argument: names, numbers at the edges, lists, slices.
fn arbitrary(next: &mut impl FnMut(usize) -> usize, names: &[String], depth: usize) -> Arg {
    const INTS: [i64; 11] = [-3, -2, -1, 0, 1, 2, 3, 4, 1 << 40, i64::MAX, i64::MIN];
    let list = |next: &mut _, names: &[String]| {
        let count = usize::min(3, depth * 4);
        (0..count).map(|_| arbitrary(next, names, depth - 1)).collect::<Vec<_>>()
    };
    match next(if depth > 0 { 18 } else { 14 }) {
        0..=7 => Arg::Ref(names[next(names.len())].clone()),
        8..=10 => Arg::Int(INTS[next(INTS.len())]),
        11 => Arg::Float([0.5, -1.0, f64::INFINITY, f64::NAN, 1e300][next(5)]),
        12 => [Arg::None, Arg::Bool(true), Arg::Bool(false), Arg::Ellipsis, Arg::Setting][next(5)].clone(),
        13 => Arg::Text(["shape", "mean", "ij->ji", "values", "cpu"][next(5)].into()),
        14 | 15 => Arg::List(list(next, names)),
        16 => Arg::Tuple(list(next, names)),
        _ => Arg::Slice(Box::new(std::array::from_fn(|_| arbitrary(next, names, 0)))),
    }
}

#[test]
fn nonsense_is_an_error_and_never_a_panic() {
    let (ops, mut state) = (operations(), 88_172_645_463_325_252_u64);
    let mut next = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % n
    };
    let node = |kind, name: &str, target: &str, args| Node {
        kind,
        name: name.into(),
        target: target.into(),
        args,
        kwargs: vec![],
    };
    let of = |name: &str| Arg::Ref(name.into());
    let mut evaluated = 0;
    for round in 0..40_000 {
        let mut nodes = vec![node(NodeKind::Placeholder, "x", "logprobs", vec![])];
        let mut names: Vec<String> = vec!["x".into(); 3];
        for k in 0..1 + next(4) {
            let (op, name) = (ops[next(ops.len())], format!("n{k}"));
            let mut args: Vec<Arg> = (0..1 + next(4)).map(|_| arbitrary(&mut next, &names, 2)).collect();
            args[0] = of(&names[next(names.len())]);
            let (kind, target) = match op {
                "getitem" => (NodeKind::Function, "operator.getitem"),
                "getattr" => (NodeKind::Function, "builtins.getattr"),
                "Tensor.where" => (NodeKind::Method, "where"),
                op if op.starts_with("math.") => (NodeKind::Function, op),
                op => (NodeKind::Method, op),
            };
            nodes.push(node(kind, &name, target, args));
            names.extend([name.clone(), name]);
        }
        nodes.push(node(NodeKind::Method, "wide", "float", vec![of(&names[names.len() - 1])]));
        nodes.push(node(NodeKind::Method, "sum", "sum", vec![of("wide")]));
        nodes.push(node(NodeKind::Method, "own", "sum", vec![of("x")]));
        nodes.push(node(NodeKind::Method, "loss", "add", vec![of("sum"), of("own")]));
        nodes.push(node(NodeKind::Output, "output", "output", vec![Arg::Tuple(vec![of("loss"), Arg::Dict(vec![])])]));
        let k = 1 + round % 2;
        let inputs = vec![Input { name: "logprobs".into(), rank: k }];
        let program = compile("id", &Graph { name: "f".into(), inputs, nodes });
        let datum = datum(4, k, vec![]);
        evaluated += usize::from(program.is_ok_and(|p| p.evaluate(&datum, &[-0.5, -1.0, -1.0, -2.0]).is_ok()));
    }
    assert!(evaluated > 500, "only {evaluated} graphs made sense: the check is void");
}
