//! Shapes: broadcasting, axes, and walks over a tensor's cells with strides.

use super::value::refuse;
use crate::error::Result;

/// Dimensions of a tensor: [T, K, K] and one to spare.
pub const MAX_RANK: usize = 4;

/// Elements of this shape; saturating, so that no product overflows.
pub fn count(shape: &[usize]) -> usize {
    shape.iter().fold(1usize, |n, d| n.saturating_mul(*d))
}

pub fn strides(shape: &[usize]) -> Vec<isize> {
    let mut out = vec![1isize; shape.len()];
    for d in (1..shape.len()).rev() {
        out[d - 1] = out[d].wrapping_mul(shape[d].max(1) as isize);
    }
    out
}

/// The shape both broadcast to, as torch has it.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], d: usize| if d + s.len() < rank { 1 } else { s[d + s.len() - rank] };
    let join = |d: usize| match (size(a, d), size(b, d)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        _ => refuse(format!("shapes {a:?} and {b:?} do not broadcast")),
    };
    (0..rank).map(join).collect()
}

/// For each cell of `to` the cell of `from` it is read from; `None` when they are the same. `from` broadcasts to `to`.
pub fn spread(from: &[usize], to: &[usize]) -> Option<Vec<u32>> {
    if from == to {
        return None;
    }
    let own = strides(from);
    let lead = to.len() - from.len();
    let stride = |d: usize| if d < lead || from[d - lead] == 1 { 0 } else { own[d - lead] };
    Some(walk(to, &(0..to.len()).map(stride).collect::<Vec<_>>(), 0))
}

/// The flat position of every cell of a view of this shape, these strides and this first cell, in row-major order.
pub fn walk(shape: &[usize], strides: &[isize], first: isize) -> Vec<u32> {
    let total = count(shape);
    let mut out = Vec::with_capacity(total);
    let mut at = vec![0usize; shape.len()];
    let mut position = first;
    for _ in 0..total {
        out.push(position as u32);
        for d in (0..shape.len()).rev() {
            at[d] += 1;
            position += strides[d];
            if at[d] < shape[d] {
                break;
            }
            position -= strides[d] * shape[d] as isize;
            at[d] = 0;
        }
    }
    out
}

/// The axis a possibly negative `dim` means. A scalar counts as one dimension.
pub fn axis(dim: i64, rank: usize) -> Result<usize> {
    let n = rank.max(1) as i64;
    if (-n..n).contains(&dim) {
        return Ok(dim.rem_euclid(n) as usize);
    }
    refuse(format!("dim {dim} is out of range for a tensor of rank {rank}"))
}

/// Lines along an axis: how many elements each has, and how far apart they lie.
#[derive(Clone, Copy)]
pub struct Lines {
    pub len: usize,
    pub stride: usize,
    pub lines: usize,
}

impl Lines {
    pub fn of(shape: &[usize], axis: usize) -> Self {
        let len = shape.get(axis).copied().unwrap_or(1);
        let stride = count(shape.get(axis + 1..).unwrap_or_default());
        Self { len, stride, lines: count(shape).checked_div(len).unwrap_or(0) }
    }

    /// The position of element j of a line.
    pub fn at(&self, line: usize, j: usize) -> usize {
        line / self.stride * self.len * self.stride + line % self.stride + j * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_in_torch() {
        assert_eq!(broadcast(&[3, 1], &[4]).unwrap(), [3, 4]);
        assert_eq!(broadcast(&[], &[2]).unwrap(), [2]);
        assert_eq!(broadcast(&[1], &[0]).unwrap(), [0]);
        assert!(broadcast(&[2], &[3]).is_err());
        assert_eq!(spread(&[2], &[2, 2]), Some(vec![0, 1, 0, 1]));
        assert_eq!(spread(&[2, 1], &[2, 2]), Some(vec![0, 0, 1, 1]));
        assert_eq!(spread(&[2], &[2]), None);
        assert_eq!(count(&[1 << 40, 1 << 40]), usize::MAX);
    }

    #[test]
    fn walks_and_lines() {
        assert_eq!(walk(&[3, 2], &[1, 3], 0), [0, 3, 1, 4, 2, 5]);
        assert_eq!(walk(&[2], &[-1], 1), [1, 0]);
        assert_eq!(walk(&[0, 2], &[2, 1], 0), [0; 0]);
        let lines = Lines::of(&[2, 3], 0);
        assert_eq!((lines.lines, lines.at(1, 0), lines.at(1, 1)), (3, 1, 4));
        assert_eq!(axis(-1, 2).unwrap(), 1);
        assert!(axis(2, 2).is_err() && axis(0, 0).is_ok());
    }
}
