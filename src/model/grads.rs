//! Where a backward pass leaves its gradients: one accumulator per trained matrix, added to datum by datum.
//!
//! Adding whole datums in order keeps a run's sums the same bits however its datums were spread over passes.

use std::ops::Range;

use crate::kernels::{Kernels, Mat, RowPair};

/// Gradients of a run's trained matrices, by position; `None` = zero so far.
#[derive(Clone, Default)]
pub struct Grads {
    mats: Vec<Option<Mat>>,
}

impl Grads {
    pub fn new(len: usize) -> Self {
        Self { mats: vec![None; len] }
    }

    pub fn mats(&self) -> &[Option<Mat>] {
        &self.mats
    }

    pub fn is_empty(&self) -> bool {
        self.mats.iter().all(Option::is_none)
    }

    /// Changes one accumulator: `f` gets the old value and gives the new one.
    pub fn update(&mut self, position: usize, f: impl FnOnce(Option<Mat>) -> Mat) {
        let old = self.mats[position].take();
        self.mats[position] = Some(f(old));
    }

    /// `+= scale · Σ dy[left]ᵀ · x[right]`.
    pub fn outer(&mut self, k: &dyn Kernels, position: usize, dy: &Mat, x: &Mat, pairs: &[RowPair], scale: f32) {
        self.update(position, |acc| k.outer_grad(acc, dy, x, pairs, scale));
    }

    /// `+= Σ rows of dy`.
    pub fn row_sum(&mut self, k: &dyn Kernels, position: usize, dy: &Mat, rows: &[Range<usize>]) {
        self.update(position, |acc| k.row_sum_grad(acc, dy, rows));
    }

    /// Adds another run of gradients; takes it over where there was none.
    pub fn merge(&mut self, k: &dyn Kernels, other: Self) {
        if self.mats.is_empty() {
            self.mats = other.mats;
            return;
        }
        for (mine, theirs) in self.mats.iter_mut().zip(other.mats) {
            if let Some(theirs) = theirs {
                *mine = Some(match mine.take() {
                    Some(m) => k.add(m, &theirs),
                    None => theirs,
                });
            }
        }
    }
}
