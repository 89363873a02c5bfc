//! What flows along a graph's edges: tensors in f64 with torch's dtypes, Python numbers, lists, slices.

use std::rc::Rc;

use crate::error::{Error, Result};

/// Beyond it a float no longer names one integer.
pub const MAX_INT: f64 = 9_007_199_254_740_992.0;

/// In torch's order of promotion. Every value is held as f64; the dtype says how operations treat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    Bool,
    I64,
    F32,
    F64,
}

impl Dtype {
    pub const ALLOWED: &str = "float32, float64, int64, int32, bool";

    pub fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "float32" | "float" => Self::F32,
            "float64" | "double" => Self::F64,
            "int64" | "long" | "int32" | "int" => Self::I64,
            "bool" => Self::Bool,
            _ => return refuse(format!("dtype {name:?} is not allowed; allowed are {}", Self::ALLOWED)),
        })
    }

    pub fn is_float(self) -> bool {
        self >= Self::F32
    }

    /// The dtype of an operation that always yields floats.
    pub fn float(self) -> Self {
        self.max(Self::F32)
    }

    /// The dtype of a sum: bools are counted.
    pub fn counted(self) -> Self {
        self.max(Self::I64)
    }

    /// `x` as this dtype holds it. Floats of 32 bits are kept in 64.
    pub fn cast(self, x: f64) -> f64 {
        match self {
            Self::Bool => f64::from(u8::from(x != 0.0)),
            Self::I64 => x.trunc(),
            Self::F32 | Self::F64 => x,
        }
    }

    fn category(self) -> u8 {
        match self {
            Self::Bool => 0,
            Self::I64 => 1,
            Self::F32 | Self::F64 => 2,
        }
    }
}

/// Row-major. `node` is its place on the tape when the loss's derivative can reach it.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    pub data: Rc<Vec<f64>>,
    pub node: Option<usize>,
}

impl Tensor {
    pub fn constant(shape: Vec<usize>, dtype: Dtype, data: Vec<f64>) -> Self {
        Self { shape, dtype, data: Rc::new(data), node: None }
    }

    pub fn scalar(dtype: Dtype, x: f64) -> Self {
        Self::constant(vec![], dtype, vec![x])
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// The same values without a past.
    pub fn detached(&self) -> Self {
        Self { node: None, ..self.clone() }
    }

    /// The only value of a tensor of one element.
    pub fn item(&self) -> Option<f64> {
        if self.data.len() == 1 { Some(self.data[0]) } else { None }
    }

    /// As integers, for indices.
    pub fn ints(&self, what: &str) -> Result<Vec<i64>> {
        match self.dtype {
            Dtype::I64 => Ok(self.data.iter().map(|x| *x as i64).collect()),
            other => refuse(format!("{what} must be an int64 tensor, not {other:?}")),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Value {
    /// Python's None, and an argument that was not given.
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    Tensor(Tensor),
    List(Rc<Vec<Value>>),
    /// What max, sort and their like give along a dimension.
    Ranked {
        values: Tensor,
        indices: Tensor,
    },
    Slice(Rc<[Value; 3]>),
    Ellipsis,
    Dtype(Dtype),
    Setting,
}

impl Value {
    pub fn ints(values: impl IntoIterator<Item = usize>) -> Self {
        Self::list(values.into_iter().map(|n| Self::Int(n as i64)).collect())
    }

    pub fn list(values: Vec<Value>) -> Self {
        Self::List(Rc::new(values))
    }

    /// A Python number: its dtype as an operand and its value.
    pub fn number(&self) -> Option<(Dtype, f64)> {
        match self {
            Self::Bool(b) => Some((Dtype::Bool, f64::from(u8::from(*b)))),
            Self::Int(i) => Some((Dtype::I64, *i as f64)),
            Self::Float(x) => Some((Dtype::F32, *x)),
            _ => None,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an int",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::Tensor(_) => "a tensor",
            Self::List(_) => "a list",
            Self::Ranked { .. } => "a pair of tensors",
            Self::Slice(_) => "a slice",
            Self::Ellipsis => "an ellipsis",
            Self::Dtype(_) => "a dtype",
            Self::Setting => "a device or layout",
        }
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Self {
        Self::Tensor(t)
    }
}

/// The dtype of an operation over these operands: as in torch, a number or a tensor of rank 0 counts only when it is
/// of a higher kind (bool, integer, float) than all operands before it in (ranked tensors, rank 0 tensors, numbers).
pub fn promote<'a>(operands: impl IntoIterator<Item = (&'a Tensor, bool)>) -> Dtype {
    let mut classes: [Option<Dtype>; 3] = [None; 3];
    for (t, is_number) in operands {
        let class = if is_number { 2 } else { usize::from(t.rank() == 0) };
        classes[class] = classes[class].max(Some(t.dtype));
    }
    let mut found = classes.into_iter().flatten();
    let first = found.next().unwrap_or(Dtype::F32);
    found.fold(first, |best, d| if d.category() > best.category() { d } else { best })
}

/// What an error may take: the list of all operations fits.
const MAX_MESSAGE: usize = 6000;

pub fn refuse<T>(message: impl Into<String>) -> Result<T> {
    let mut message: String = message.into();
    if message.len() > MAX_MESSAGE {
        message = message.chars().take(MAX_MESSAGE).collect();
    }
    Err(Error::user(message))
}
