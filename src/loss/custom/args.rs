//! The arguments of one call, in the order of the operation's parameters, read as what the operation wants.

use super::shape::axis;
use super::value::{Dtype, Tensor, Value, promote, refuse};
use crate::error::Result;

pub struct Args<'a> {
    /// Names of the parameters, for errors.
    pub params: &'a [&'static str],
    pub values: &'a [Value],
}

impl Args<'_> {
    pub fn get(&self, i: usize) -> &Value {
        &self.values[i]
    }

    pub fn given(&self, i: usize) -> bool {
        !matches!(self.values[i], Value::None)
    }

    fn wrong<T>(&self, i: usize, want: &str) -> Result<T> {
        refuse(format!("{} must be {want}, not {}", self.params[i].trim_start_matches('*'), self.get(i).kind()))
    }

    pub fn tensor(&self, i: usize) -> Result<Tensor> {
        match self.get(i) {
            Value::Tensor(t) => Ok(t.clone()),
            _ => self.wrong(i, "a tensor"),
        }
    }

    pub fn optional_tensor(&self, i: usize) -> Result<Option<Tensor>> {
        if self.given(i) { self.tensor(i).map(Some) } else { Ok(None) }
    }

    /// A tensor, or a number as a tensor of rank 0; true for a number.
    pub fn operand(&self, i: usize) -> Result<(Tensor, bool)> {
        match (self.get(i), self.get(i).number()) {
            (Value::Tensor(t), _) => Ok((t.clone(), false)),
            (_, Some((dtype, x))) => Ok((Tensor::scalar(dtype, x), true)),
            _ => self.wrong(i, "a tensor or a number"),
        }
    }

    pub fn optional_operand(&self, i: usize) -> Result<Option<(Tensor, bool)>> {
        if self.given(i) { self.operand(i).map(Some) } else { Ok(None) }
    }

    /// Operands `which` and the dtype they come together in; numbers take its precision.
    pub fn operands<const N: usize>(&self, which: [usize; N]) -> Result<([Tensor; N], Dtype)> {
        let mut read = Vec::with_capacity(N);
        for i in which {
            read.push(self.operand(i)?);
        }
        let dtype = promote(read.iter().map(|(t, number)| (t, *number)));
        let tensors: Vec<Tensor> = read.into_iter().map(|operand| fit(operand, dtype)).collect();
        Ok((tensors.try_into().expect("as many as were asked for"), dtype))
    }

    pub fn int(&self, i: usize) -> Result<Option<i64>> {
        match self.get(i) {
            Value::None => Ok(None),
            Value::Int(n) => Ok(Some(*n)),
            Value::Tensor(t) if t.dtype == Dtype::I64 && t.len() == 1 => Ok(Some(t.data[0] as i64)),
            _ => self.wrong(i, "an int"),
        }
    }

    pub fn float(&self, i: usize, default: f64) -> Result<f64> {
        match (self.get(i), self.get(i).number()) {
            (Value::None, _) => Ok(default),
            (_, Some((_, x))) => Ok(x),
            _ => self.wrong(i, "a number"),
        }
    }

    pub fn flag(&self, i: usize, default: bool) -> Result<bool> {
        match self.get(i) {
            Value::None => Ok(default),
            Value::Bool(b) => Ok(*b),
            Value::Int(n) => Ok(*n != 0),
            _ => self.wrong(i, "a bool"),
        }
    }

    pub fn text(&self, i: usize) -> Result<Option<&str>> {
        match self.get(i) {
            Value::None => Ok(None),
            Value::Text(s) => Ok(Some(s)),
            _ => self.wrong(i, "a string"),
        }
    }

    pub fn dtype(&self, i: usize) -> Result<Option<Dtype>> {
        match self.get(i) {
            Value::None => Ok(None),
            Value::Dtype(d) => Ok(Some(*d)),
            _ => self.wrong(i, "a dtype"),
        }
    }

    /// One int or a list of them.
    pub fn ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        match self.get(i) {
            Value::None => Ok(None),
            Value::Int(n) => Ok(Some(vec![*n])),
            Value::List(list) => {
                let int = |v: &Value| if let Value::Int(n) = v { Some(*n) } else { None };
                // A list of lists is a varargs call with one list.
                if let [inner @ Value::List(_)] = &list[..] {
                    return Args { params: &[self.params[i]], values: std::slice::from_ref(inner) }.ints(0);
                }
                match list.iter().map(int).collect() {
                    Some(ints) => Ok(Some(ints)),
                    None => self.wrong(i, "a list of ints"),
                }
            }
            _ => self.wrong(i, "an int or a list of ints"),
        }
    }

    pub fn required_ints(&self, i: usize) -> Result<Vec<i64>> {
        self.ints(i)?.map_or_else(|| self.wrong(i, "an int or a list of ints"), Ok)
    }

    pub fn axis(&self, i: usize, rank: usize) -> Result<Option<usize>> {
        self.int(i)?.map(|dim| axis(dim, rank)).transpose()
    }

    /// The axes a reduction goes over, each once; all of them when none is named.
    pub fn axes(&self, i: usize, rank: usize) -> Result<Vec<usize>> {
        let dims = self.ints(i)?.unwrap_or_default();
        let mut axes = dims.iter().map(|d| axis(*d, rank)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        if axes.windows(2).any(|w| w[0] == w[1]) {
            return refuse(format!("dim {dims:?} names a dimension twice"));
        }
        Ok(if axes.is_empty() { (0..rank).collect() } else { axes.into_iter().filter(|a| *a < rank).collect() })
    }

    /// A list of tensors.
    pub fn tensors(&self, i: usize) -> Result<Vec<Tensor>> {
        let Value::List(list) = self.get(i) else { return self.wrong(i, "a list of tensors") };
        if let [Value::List(inner)] = &list[..] {
            return Args { params: &[self.params[i]], values: &[Value::List(inner.clone())] }.tensors(0);
        }
        let tensor = |v: &Value| if let Value::Tensor(t) = v { Some(t.clone()) } else { None };
        match list.iter().map(tensor).collect::<Option<Vec<_>>>() {
            Some(tensors) if !tensors.is_empty() => Ok(tensors),
            _ => self.wrong(i, "a list of tensors"),
        }
    }
}

/// A number takes the precision of the operation, as torch rounds it.
pub fn fit((t, is_number): (Tensor, bool), dtype: Dtype) -> Tensor {
    match dtype {
        Dtype::F32 if is_number => Tensor::scalar(t.dtype, f64::from(t.data[0] as f32)),
        _ => t,
    }
}
