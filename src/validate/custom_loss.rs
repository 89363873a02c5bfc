//! Custom losses from their wire form: the graph of a new one, and what a datum brings for an uploaded one.

use serde_json::Value;
use tinderbox_client::types::custom_loss::{CreateCustomLossRequest, CustomLossNode};
use tinderbox_client::types::datum::LossFnInputs;
use tinderbox_client::types::tensor_data::TensorValues;

use crate::command::{NamedInput, Numbers};
use crate::error::{Error, Result};
use crate::loss::custom::Program;
use crate::loss::custom::graph::{Arg, Graph, Input, Node, NodeKind};

/// How deep lists and objects in an argument may stand inside each other.
const MAX_DEPTH: usize = 8;

/// The graph in plain values; what its operations mean is checked when it is compiled.
pub fn graph(request: &CreateCustomLossRequest) -> Result<Graph> {
    if request.graph.format != 1 {
        return Err(Error::user(format!("graph.format is {}; 1 is supported", request.graph.format)));
    }
    let input = |i: &tinderbox_client::types::custom_loss::CustomLossInput| Input {
        name: i.name.clone(),
        rank: usize::try_from(i.rank).unwrap_or(usize::MAX),
    };
    let inputs = request.inputs.iter().map(input).collect();
    let nodes = request.graph.nodes.iter().enumerate().map(|(i, n)| {
        node(n)
            .map_err(|e| e.context(format_args!("graph.nodes[{i}] {:?}", n.name.chars().take(80).collect::<String>())))
    });
    Ok(Graph { name: request.name.clone(), inputs, nodes: nodes.collect::<Result<_>>()? })
}

fn node(n: &CustomLossNode) -> Result<Node> {
    let kind = match n.op.as_str() {
        "placeholder" => NodeKind::Placeholder,
        "call_function" => NodeKind::Function,
        "call_method" => NodeKind::Method,
        "output" => NodeKind::Output,
        other => {
            return Err(Error::user(format!(
                "op {other:?} is not allowed; allowed are placeholder, call_function, call_method, output"
            )));
        }
    };
    Ok(Node {
        kind,
        name: n.name.clone(),
        target: n.target.clone(),
        args: n.args.iter().map(|v| arg(v, 0)).collect::<Result<_>>()?,
        kwargs: n.kwargs.iter().map(|(k, v)| Ok((k.clone(), arg(v, 0)?))).collect::<Result<_>>()?,
    })
}

fn arg(value: &Value, depth: usize) -> Result<Arg> {
    if depth > MAX_DEPTH {
        return Err(Error::user(format!("arguments are nested deeper than {MAX_DEPTH}")));
    }
    let all = |list: &[Value]| list.iter().map(|v| arg(v, depth + 1)).collect::<Result<Vec<_>>>();
    Ok(match value {
        Value::Null => Arg::None,
        Value::Bool(b) => Arg::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => Arg::Int(i),
            (None, Some(x)) => Arg::Float(x),
            (None, None) => return Err(Error::user(format!("{n} is no number"))),
        },
        Value::String(s) => Arg::Text(s.clone()),
        Value::Array(list) => Arg::List(all(list)?),
        Value::Object(map) => {
            let mut entries = map.iter();
            let (Some((key, inner)), None) = (entries.next(), entries.next()) else {
                return Err(Error::user(format!("an argument that is an object has one key, not {}", map.len())));
            };
            match (key.as_str(), inner) {
                ("ref", Value::String(name)) => Arg::Ref(name.clone()),
                ("tuple", Value::Array(list)) => Arg::Tuple(all(list)?),
                ("dict", Value::Object(map)) => {
                    Arg::Dict(map.iter().map(|(k, v)| Ok((k.clone(), arg(v, depth + 1)?))).collect::<Result<_>>()?)
                }
                ("slice", Value::Array(list)) => match <[Arg; 3]>::try_from(all(list)?) {
                    Ok(parts) => Arg::Slice(Box::new(parts)),
                    Err(parts) => return Err(Error::user(format!("a slice has 3 parts, not {}", parts.len()))),
                },
                ("ellipsis", _) => Arg::Ellipsis,
                ("float", Value::String(text)) => Arg::Float(match text.as_str() {
                    "inf" => f64::INFINITY,
                    "-inf" => f64::NEG_INFINITY,
                    "nan" => f64::NAN,
                    _ => return Err(Error::user(format!("float {text:?} must be inf, -inf or nan"))),
                }),
                ("dtype", Value::String(name)) => Arg::Dtype(name.clone()),
                ("device" | "layout" | "memory_format", Value::String(_)) => Arg::Setting,
                _ => {
                    return Err(Error::user(format!(
                        "an argument {{{key:?}: …}} is not understood; there are ref, tuple, dict, slice, ellipsis, \
                         float, dtype, device, layout, memory_format, each with a value of its kind"
                    )));
                }
            }
        }
    })
}

/// Whether the datum's targets have the rank that the loss declared for its logprobs.
pub fn check_rank(program: &Program, two_dimensional: bool) -> Result<()> {
    let (rank, want) = (1 + usize::from(two_dimensional), program.inputs[0].rank);
    if rank == want {
        return Ok(());
    }
    Err(Error::user(format!(
        "target_tokens has rank {rank}; the custom loss {:?} declared logprobs with rank {want}",
        program.name
    )))
}

/// The tensors that the loss reads, in its order. Their cells are taken from `room`.
pub fn inputs(program: &Program, tensors: &LossFnInputs, room: &mut usize) -> Result<Vec<NamedInput>> {
    let read = |input: &Input| {
        let name = &input.name;
        let tensor = tensors.get(name).ok_or_else(|| {
            let present: Vec<&str> = tensors.keys().map(String::as_str).collect();
            let present = present.join(", ");
            Error::user(format!(
                "loss_fn_inputs lacks {name:?}, which the custom loss {:?} takes (there is: {present})",
                program.name
            ))
        })?;
        let mut dense = tensor.to_dense(0, *room).map_err(|e| Error::user(format!("{name}: {e}")))?;
        // The wire cannot tell one number from a vector of one.
        if input.rank == 0 && dense.values.len() == 1 {
            dense.shape.clear();
        }
        if dense.shape.len() != input.rank {
            return Err(Error::user(format!(
                "{name} has shape {:?}; the custom loss {:?} declared it with rank {}",
                dense.shape, program.name, input.rank
            )));
        }
        *room -= dense.values.len();
        let numbers = match dense.values {
            TensorValues::Float32(v) => Numbers::F32(v),
            TensorValues::Int64(v) => Numbers::I64(exact(name, v)?),
        };
        Ok(NamedInput { shape: dense.shape, numbers })
    };
    program.inputs[1..].iter().map(read).collect()
}

/// Integers that a float of 64 bits holds exactly.
fn exact(name: &str, values: Vec<i64>) -> Result<Vec<i64>> {
    match values.iter().find(|v| v.unsigned_abs() > 1 << 53) {
        Some(v) => Err(Error::user(format!("{name}: {v} is beyond 2^53, the largest integer a custom loss takes"))),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::custom::compile;
    use serde_json::json;
    use tinderbox_client::types::tensor_data::TensorData;

    fn request(nodes: Value, inputs: Value) -> CreateCustomLossRequest {
        let body = json!({"session_id": "s", "custom_loss_seq_id": 0, "name": "f", "inputs": inputs,
            "graph": {"format": 1, "nodes": nodes}, "type": "create_custom_loss"});
        serde_json::from_value(body).unwrap()
    }

    fn program(rank: usize) -> Program {
        let nodes = json!([
            {"op": "placeholder", "name": "lp", "target": "logprobs"},
            {"op": "placeholder", "name": "b", "target": "beta"},
            {"op": "call_function", "name": "m", "target": "operator.mul", "args": [{"ref": "lp"}, {"ref": "b"}]},
            {"op": "call_method", "name": "s", "target": "sum", "args": [{"ref": "m"}]},
            {"op": "output", "name": "output", "target": "output", "args": [{"tuple": [{"ref": "s"}, {"dict": {}}]}]},
        ]);
        let inputs = json!([{"name": "logprobs", "rank": 1}, {"name": "beta", "rank": rank}]);
        compile("id", &graph(&request(nodes, inputs)).unwrap()).unwrap()
    }

    #[test]
    fn arguments_have_their_encodings() {
        let read = |v: Value| arg(&v, 0);
        assert_eq!(
            read(json!({"slice": [1, null, -1]})).unwrap(),
            Arg::Slice(Box::new([Arg::Int(1), Arg::None, Arg::Int(-1)]))
        );
        assert_eq!(read(json!({"float": "-inf"})).unwrap(), Arg::Float(f64::NEG_INFINITY));
        assert_eq!(
            read(json!({"tuple": [1.5, {"ellipsis": true}]})).unwrap(),
            Arg::Tuple(vec![Arg::Float(1.5), Arg::Ellipsis])
        );
        assert_eq!(read(json!({"device": "cpu"})).unwrap(), Arg::Setting);
        for bad in [json!({"slice": [1]}), json!({"float": "1"}), json!({"ref": 3}), json!({"a": 1, "b": 2}), json!({})]
        {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
        let deep = (0..20).fold(json!(1), |v, _| json!([v]));
        assert!(read(deep).unwrap_err().message.contains("nested"));
    }

    #[test]
    fn a_scalar_input_comes_as_a_vector_of_one() {
        let tensors = |t: TensorData| LossFnInputs::from([("beta".into(), t)]);
        let mut room = 10;
        let read = inputs(&program(0), &tensors(TensorData::from_f32([0.5])), &mut room).unwrap();
        assert_eq!((read[0].shape.clone(), room), (vec![], 9));
        assert_eq!(inputs(&program(1), &tensors(TensorData::from_i64([3])), &mut room).unwrap()[0].shape, [1]);
        for (rank, tensor, mention) in [
            (0, TensorData::from_f32([1.0, 2.0]), "rank 0"),
            (2, TensorData::from_f32([1.0, 2.0]), "rank 2"),
            (1, TensorData::from_i64([1 << 60]), "2^53"),
            (1, TensorData::from_f32([0.0; 99]), "elements"),
        ] {
            let e = inputs(&program(rank), &tensors(tensor), &mut room).unwrap_err().message;
            assert!(e.contains(mention) && e.contains("beta"), "{e}");
        }
        let e = inputs(&program(1), &LossFnInputs::new(), &mut room).unwrap_err().message;
        assert!(e.contains("lacks \"beta\""), "{e}");
        assert!(check_rank(&program(1), false).is_ok() && check_rank(&program(1), true).is_err());
    }
}
