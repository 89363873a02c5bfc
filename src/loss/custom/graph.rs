//! A traced loss as it was sent: nodes in execution order, plain values, nothing checked yet (protocol ch. 15).

use serde::{Deserialize, Serialize};

/// Inputs in the order of the graph's placeholders; the first is `logprobs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The Python function's.
    pub name: String,
    pub inputs: Vec<Input>,
    pub nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    pub name: String,
    /// 0 = scalar, 1 = (T,), 2 = (T, K).
    pub rank: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    Placeholder,
    Function,
    Method,
    Output,
}

/// One node as torch.fx records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub kind: NodeKind,
    pub name: String,
    pub target: String,
    pub args: Vec<Arg>,
    pub kwargs: Vec<(String, Arg)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Arg {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// The value of an earlier node.
    Ref(String),
    List(Vec<Arg>),
    Tuple(Vec<Arg>),
    Dict(Vec<(String, Arg)>),
    Slice(Box<[Arg; 3]>),
    Ellipsis,
    Dtype(String),
    /// A device, layout or memory format: there is one of each here.
    Setting,
}
