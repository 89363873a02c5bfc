//! What one pass works on: the tokens of many sequences of many adapters, side by side without padding.

use std::ops::Range;

use crate::kernels::{LoraRows, RowPair};
use crate::model::weights::Adapter;

/// Contiguous rows of a pass that belong to one run or sampler.
pub struct Group<'a> {
    pub rows: Range<usize>,
    /// `None`: the bare base weights.
    pub adapter: Option<&'a Adapter>,
    /// Rows of each sequence, in order; they tile `rows`.
    pub seqs: Vec<Range<usize>>,
}

/// Some consecutive tokens of a sequence, and the position of the first.
pub type Part<S> = (u32, S);

/// A packed pass.
pub struct Batch<'a> {
    pub tokens: Vec<u32>,
    /// Position of each token in its own sequence.
    pub positions: Vec<u32>,
    pub groups: Vec<Group<'a>>,
}

impl<'a> Batch<'a> {
    /// Packs whole sequences that start at position 0, group by group.
    pub fn pack<S: AsRef<[u32]>>(groups: Vec<(Option<&'a Adapter>, Vec<S>)>) -> Self {
        let at_zero = |(adapter, seqs): (_, Vec<S>)| (adapter, seqs.into_iter().map(|s| (0, s)).collect());
        Self::pack_from(groups.into_iter().map(at_zero).collect())
    }

    /// Packs parts of sequences, group by group.
    pub fn pack_from<S: AsRef<[u32]>>(groups: Vec<(Option<&'a Adapter>, Vec<Part<S>>)>) -> Self {
        let mut batch = Self { tokens: Vec::new(), positions: Vec::new(), groups: Vec::new() };
        for (adapter, seqs) in groups {
            let first = batch.tokens.len();
            let mut ranges = Vec::with_capacity(seqs.len());
            for (position, s) in seqs {
                let (at, s) = (batch.tokens.len(), s.as_ref());
                batch.tokens.extend_from_slice(s);
                batch.positions.extend(position..position + s.len() as u32);
                ranges.push(at..batch.tokens.len());
            }
            batch.groups.push(Group { rows: first..batch.tokens.len(), adapter, seqs: ranges });
        }
        batch
    }

    pub fn seqs(&self) -> Vec<Range<usize>> {
        self.groups.iter().flat_map(|g| g.seqs.iter().cloned()).collect()
    }

    /// The adapters that act at a site, each with its rows, and the group it belongs to.
    pub fn lora(&self, site: usize) -> (Vec<LoraRows<'a>>, Vec<usize>) {
        let mut parts = Vec::new();
        let mut owners = Vec::new();
        for (i, g) in self.groups.iter().enumerate() {
            if let Some(part) = g.adapter.and_then(|a| a.rows(site, g.rows.clone())) {
                parts.push(part);
                owners.push(i);
            }
        }
        (parts, owners)
    }
}

/// Pairs each range of pass rows with the same rows counted from `first`, for matrices that hold one group only.
pub fn local_right(ranges: &[Range<usize>], first: usize) -> Vec<RowPair> {
    ranges.iter().map(|r| RowPair { left: r.clone(), right: r.start - first }).collect()
}

/// The same with the sides exchanged.
pub fn local_left(ranges: &[Range<usize>], first: usize) -> Vec<RowPair> {
    ranges.iter().map(|r| RowPair { left: r.start - first..r.end - first, right: r.start }).collect()
}

/// Pairs rows with themselves.
pub fn same_rows(ranges: &[Range<usize>]) -> Vec<RowPair> {
    ranges.iter().map(|r| RowPair { left: r.clone(), right: r.start }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_lie_side_by_side_and_each_starts_at_position_zero() {
        let b = Batch::pack(vec![(None, vec![vec![5, 6, 7], vec![8]]), (None, vec![vec![9, 9]])]);
        assert_eq!(b.tokens, [5, 6, 7, 8, 9, 9]);
        assert_eq!(b.positions, [0, 1, 2, 0, 0, 1]);
        assert_eq!(b.seqs(), [0..3, 3..4, 4..6]);
        assert_eq!(b.groups[1].rows, 4..6);
        let parts = Batch::pack_from(vec![(None, vec![(7, vec![5, 6]), (0, vec![8])])]);
        assert_eq!((parts.positions, parts.groups[0].seqs.clone()), (vec![7, 8, 0], vec![0..2, 2..3]));
    }
}
