//! A checked loss, and its evaluation on one datum: value, metrics, and the derivative at each logprob.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::args::Args;
use super::compile::{NO_DERIVATIVE, compile};
use super::eval::Eval;
use super::graph::{Graph, Input};
use super::ops::{self, Op};
use super::value::{Dtype, Tensor, Value, refuse};
use crate::command::{Datum, NamedInput, Numbers};
use crate::error::Result;
use crate::loss::DatumLoss;

/// What a custom loss is once it was checked. Two are equal when they have the same id.
#[derive(Clone)]
pub struct Program {
    pub id: String,
    /// The Python function's name.
    pub name: String,
    /// The first is `logprobs`; a datum brings the others, in this order.
    pub inputs: Vec<Input>,
    pub(super) steps: Vec<Step>,
    /// Values there are room for: the inputs', then one for each node.
    pub(super) slots: usize,
    pub(super) loss: usize,
    pub(super) metrics: Vec<(Arc<str>, usize)>,
    /// What it was made from.
    pub(super) graph: Arc<Graph>,
}

#[derive(Clone)]
pub struct Step {
    /// The node, for errors.
    pub place: String,
    pub op: &'static Op,
    pub args: Vec<Expr>,
    pub slot: usize,
    /// Slots that no later step reads.
    pub last_uses: Vec<usize>,
}

/// An argument before the values are there.
#[derive(Clone, Debug)]
pub enum Expr {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Slot(usize),
    List(Vec<Expr>),
    Slice(Box<[Expr; 3]>),
    Ellipsis,
    Dtype(Dtype),
    Setting,
}

/// As its id and graph.
impl Serialize for Program {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        (&self.id, &*self.graph).serialize(serializer)
    }
}

/// Checked and compiled again.
impl<'de> Deserialize<'de> for Program {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let (id, graph) = <(String, Graph)>::deserialize(deserializer)?;
        compile(&id, &graph).map_err(serde::de::Error::custom)
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({}, {})", self.id, self.name)
    }
}

impl Expr {
    /// Adds the slots it refers to.
    pub fn slots(&self, into: &mut Vec<usize>) {
        match self {
            Self::Slot(slot) => into.push(*slot),
            Self::List(list) => list.iter().for_each(|e| e.slots(into)),
            Self::Slice(parts) => parts.iter().for_each(|e| e.slots(into)),
            _ => {}
        }
    }

    fn value(&self, slots: &[Value]) -> Value {
        match self {
            Self::None => Value::None,
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(i) => Value::Int(*i),
            Self::Float(x) => Value::Float(*x),
            Self::Text(s) => Value::Text(s.as_str().into()),
            Self::Slot(slot) => slots[*slot].clone(),
            Self::List(list) => Value::list(list.iter().map(|e| e.value(slots)).collect()),
            Self::Slice(parts) => Value::Slice(Rc::new(std::array::from_fn(|i| parts[i].value(slots)))),
            Self::Ellipsis => Value::Ellipsis,
            Self::Dtype(dtype) => Value::Dtype(*dtype),
            Self::Setting => Value::Setting,
        }
    }
}

/// What a program came to, before anything is checked of it.
pub struct Outcome {
    pub eval: Eval,
    pub loss: Value,
    pub metrics: Vec<Value>,
}

impl Program {
    /// The loss on one datum with `logprobs`, (T, K) row-major.
    ///
    /// # Errors
    /// The user's: an operation that does not fit its operands, named with its node; a loss that is no finite number;
    /// a derivative that is not finite; more work than a datum of this size may take.
    pub fn evaluate(&self, datum: &Datum, logprobs: &[f32]) -> Result<DatumLoss> {
        let failed = |e: crate::error::Error| e.context(format_args!("custom loss {:?}", self.name));
        self.checked(datum, logprobs).map_err(failed)
    }

    fn checked(&self, datum: &Datum, logprobs: &[f32]) -> Result<DatumLoss> {
        let outcome = self.run(datum, logprobs)?;
        let Value::Tensor(loss) = outcome.loss else {
            return refuse(format!("the loss must be a scalar tensor, not {}", outcome.loss.kind()));
        };
        if loss.rank() != 0 || !loss.dtype.is_float() {
            return refuse(format!("the loss must be a float scalar, not {:?} of shape {:?}", loss.dtype, loss.shape));
        }
        let value = loss.data[0];
        if !value.is_finite() {
            return refuse(format!("the loss is {value}"));
        }
        let mut custom = Vec::with_capacity(self.metrics.len());
        for ((name, _), value) in self.metrics.iter().zip(&outcome.metrics) {
            let number = match value {
                Value::Tensor(t) => t.item(),
                other => other.number().map(|(_, x)| x),
            };
            let Some(number) = number else { return refuse(format!("metric {name} is not one number")) };
            custom.push((name.clone(), number));
        }
        let Some(node) = loss.node else { return refuse(NO_DERIVATIVE) };
        let derivative = outcome.eval.tape.backward(node, vec![1.0]);
        let d_logprobs: Vec<f32> = derivative.into_iter().map(|d| d as f32).collect();
        if let Some(i) = d_logprobs.iter().position(|d| !d.is_finite()) {
            let (position, d, lp) = (i / datum.k, d_logprobs[i], logprobs[i]);
            return refuse(format!(
                "the derivative at position {position} is {d}, where the logprob is {lp}; as in torch, a mask after log(0), \
                 1/0 or sqrt(0) keeps their infinite slope: mask what goes into them"
            ));
        }
        Ok(DatumLoss { value, d_logprobs, metrics: None, custom })
    }

    pub(super) fn run(&self, datum: &Datum, logprobs: &[f32]) -> Result<Outcome> {
        let mut eval = Eval::new(logprobs.len());
        let shape = if datum.two_dimensional { vec![logprobs.len() / datum.k, datum.k] } else { vec![logprobs.len()] };
        let mut slots = vec![Value::None; self.slots];
        slots[0] = eval.leaf(shape, logprobs.iter().map(|x| f64::from(*x)).collect()).into();
        for (slot, input) in slots[1..].iter_mut().zip(&datum.inputs.named) {
            *slot = tensor(input).into();
        }
        for step in &self.steps {
            let values: Vec<Value> = step.args.iter().map(|e| e.value(&slots)).collect();
            let params: Vec<&'static str> = step.op.params.split_whitespace().collect();
            let args = Args { params: &params, values: &values };
            slots[step.slot] = ops::run(&mut eval, step.op, &args).map_err(|e| e.context(&step.place))?;
            step.last_uses.iter().for_each(|slot| slots[*slot] = Value::None);
        }
        let metrics = self.metrics.iter().map(|(_, slot)| slots[*slot].clone()).collect();
        Ok(Outcome { eval, loss: slots[self.loss].clone(), metrics })
    }
}

fn tensor(input: &NamedInput) -> Tensor {
    match &input.numbers {
        Numbers::F32(v) => Tensor::constant(input.shape.clone(), Dtype::F32, v.iter().map(|x| f64::from(*x)).collect()),
        Numbers::I64(v) => Tensor::constant(input.shape.clone(), Dtype::I64, v.iter().map(|x| *x as f64).collect()),
    }
}
