//! The state of one evaluation: the tape, what may still be spent, and the few primitives all operations are made of.

use std::rc::Rc;

use super::shape::{MAX_RANK, broadcast, count, spread};
use super::tape::{Edge, Factor, Link, Tape};
use super::value::{Dtype, MAX_INT, Tensor, refuse};
use crate::error::Result;

/// Cells that an evaluation may write for a datum of one target, and for each target.
const CELLS: usize = 1 << 16;
const CELLS_PER_TARGET: usize = 1 << 12;
/// Whatever the datum's size: 2²⁵ cells are 256 MiB.
const MAX_CELLS: usize = 1 << 25;

/// Marks a cell that is made of no element.
pub const NOWHERE: u32 = u32::MAX;

pub struct Eval {
    pub tape: Tape,
    limit: usize,
    spent: usize,
}

impl Eval {
    /// For a datum with this many logprobs.
    pub fn new(targets: usize) -> Self {
        let limit = CELLS.saturating_add(CELLS_PER_TARGET.saturating_mul(targets)).min(MAX_CELLS);
        Self { tape: Tape::default(), limit, spent: 0 }
    }

    /// Room for a tensor of this shape and `more` values beside each of its cells.
    pub fn take(&mut self, shape: &[usize], more: usize) -> Result<usize> {
        if shape.len() > MAX_RANK {
            return refuse(format!("a tensor of shape {shape:?} has {} dimensions; at most {MAX_RANK}", shape.len()));
        }
        // A dimension of no cells must not hide a huge one: lists of places are made for each dimension.
        let full = shape.iter().fold(1usize, |n, d| n.saturating_mul((*d).max(1)));
        self.spend(full.saturating_mul(1 + more), shape)?;
        Ok(count(shape))
    }

    /// Notes `cells` of work that a tensor of `shape` costs.
    pub fn spend(&mut self, cells: usize, shape: &[usize]) -> Result<()> {
        self.spent = self.spent.saturating_add(cells);
        if self.spent > self.limit {
            return refuse(format!(
                "a tensor of shape {shape:?} would bring the loss to more than {} cells, the limit for this datum",
                self.limit
            ));
        }
        Ok(())
    }

    /// The logprobs, whose derivative is asked for. To be called first.
    pub fn leaf(&mut self, shape: Vec<usize>, data: Vec<f64>) -> Tensor {
        let node = self.tape.push(data.len(), vec![]);
        Tensor { node: Some(node), ..Tensor::constant(shape, Dtype::F32, data) }
    }

    /// A new tensor and what it was made of.
    pub fn made(&mut self, shape: Vec<usize>, dtype: Dtype, data: Vec<f64>, edges: Vec<Edge>) -> Tensor {
        let node = (!edges.is_empty()).then(|| self.tape.push(data.len(), edges));
        Tensor { shape, dtype, data: Rc::new(data), node }
    }

    /// Cell by cell over broadcast operands: `f` gives the value and its derivative with respect to each operand.
    pub fn pointwise<const N: usize>(
        &mut self,
        xs: [&Tensor; N],
        dtype: Dtype,
        f: impl Fn([f64; N]) -> (f64, [f64; N]),
    ) -> Result<Tensor> {
        self.cells(xs, dtype, Factor::Each, f)
    }

    /// As `pointwise`, for functions that choose: an operand of derivative zero was not chosen, and gets nothing back.
    pub fn choose<const N: usize>(
        &mut self,
        xs: [&Tensor; N],
        dtype: Dtype,
        f: impl Fn([f64; N]) -> (f64, [f64; N]),
    ) -> Result<Tensor> {
        self.cells(xs, dtype, Factor::Sieve, f)
    }

    fn cells<const N: usize>(
        &mut self,
        xs: [&Tensor; N],
        dtype: Dtype,
        factor: fn(Vec<f64>) -> Factor,
        f: impl Fn([f64; N]) -> (f64, [f64; N]),
    ) -> Result<Tensor> {
        let shape = xs.iter().try_fold(Vec::new(), |shape, x| broadcast(&shape, &x.shape))?;
        let n = self.take(&shape, 2 * N)?;
        let mut maps = xs.map(|x| spread(&x.shape, &shape));
        let tracked = xs.map(|x| dtype.is_float() && x.node.is_some());
        let mut slopes: [Vec<f64>; N] = tracked.map(|t| Vec::with_capacity(if t { n } else { 0 }));
        let mut data = Vec::with_capacity(n);
        for o in 0..n {
            let at = |i: usize| xs[i].data[maps[i].as_ref().map_or(o, |m| m[o] as usize)];
            let (value, d) = f(std::array::from_fn(at));
            data.push(value);
            for i in (0..N).filter(|i| tracked[*i]) {
                slopes[i].push(d[i]);
            }
        }
        if dtype == Dtype::I64
            && let Some(x) = data.iter().find(|x| x.is_nan() || x.abs() > MAX_INT)
        {
            return refuse(format!("an integer became {x}: a division by zero, or beyond 2^53"));
        }
        let mut edges = Vec::new();
        for (i, slope) in slopes.into_iter().enumerate().filter(|(i, _)| tracked[*i]) {
            if let Some(parent) = xs[i].node {
                let link = Link::Pull { from: maps[i].take(), factor: factor(slope) };
                edges.push(Edge { parent, link });
            }
        }
        Ok(self.made(shape, dtype, data, edges))
    }

    pub fn map(&mut self, x: &Tensor, dtype: Dtype, f: impl Fn(f64) -> (f64, f64)) -> Result<Tensor> {
        self.pointwise([x], dtype, |[x]| {
            let (y, d) = f(x);
            (y, [d])
        })
    }

    /// As `map`, for a function that is flat where its derivative is zero.
    pub fn sieve(&mut self, x: &Tensor, dtype: Dtype, f: impl Fn(f64) -> (f64, f64)) -> Result<Tensor> {
        self.choose([x], dtype, |[x]| {
            let (y, d) = f(x);
            (y, [d])
        })
    }

    /// A tensor whose cell o is the element `from[o]` of `x`, or `fill` where that is `NOWHERE`.
    pub fn pick(&mut self, x: &Tensor, shape: Vec<usize>, from: Vec<u32>, fill: f64) -> Result<Tensor> {
        let n = self.take(&shape, 1)?;
        assert_eq!(n, from.len(), "one source per cell");
        let data = from.iter().map(|i| if *i == NOWHERE { fill } else { x.data[*i as usize] }).collect();
        let link = |parent| Edge { parent, link: Link::Pull { from: Some(from), factor: Factor::One } };
        let edges = x.node.map(link).into_iter().collect();
        Ok(self.made(shape, x.dtype, data, edges))
    }

    /// The same values in another shape of as many cells.
    pub fn reshaped(&mut self, x: &Tensor, shape: Vec<usize>) -> Result<Tensor> {
        self.take(&shape, 0)?;
        let identity = |parent| Edge { parent, link: Link::Pull { from: None, factor: Factor::One } };
        let node = x.node.map(|parent| self.tape.push(x.len(), vec![identity(parent)]));
        Ok(Tensor { shape, dtype: x.dtype, data: x.data.clone(), node })
    }

    pub fn cast(&mut self, x: &Tensor, dtype: Dtype) -> Result<Tensor> {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        if let (Dtype::I64, Some(bad)) = (dtype, x.data.iter().find(|x| !x.is_finite())) {
            return refuse(format!("{bad} has no integer value"));
        }
        self.map(x, dtype, |v| (dtype.cast(v), 1.0))
    }
}
