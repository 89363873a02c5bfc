//! The k largest logits, in one pass over the vocabulary.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::temperature::max_of;

/// Logits that are skipped at once when none of them can enter.
const CHUNK: usize = 64;

/// Token ids of the k largest logits (without NaN), largest first, ties by lower id; all ids when k ≥ V.
pub fn largest(logits: &[f32], k: usize) -> Vec<u32> {
    let k = k.min(logits.len());
    let mut kept: BinaryHeap<Reverse<Ranked>> = BinaryHeap::with_capacity(k);
    // An equal logit with a higher id does not displace one that is kept.
    let can_enter = |kept: &BinaryHeap<Reverse<Ranked>>, logit: f32| {
        kept.len() < k || kept.peek().is_some_and(|Reverse(least)| logit > least.logit)
    };
    for (c, chunk) in logits.chunks(CHUNK).enumerate() {
        if !can_enter(&kept, max_of(chunk)) {
            continue;
        }
        for (i, &logit) in chunk.iter().enumerate() {
            if can_enter(&kept, logit) {
                if kept.len() == k {
                    kept.pop();
                }
                kept.push(Reverse(Ranked { logit, token: (c * CHUNK + i) as u32 }));
            }
        }
    }
    kept.into_sorted_vec().into_iter().map(|Reverse(r)| r.token).collect()
}

/// Greater = better: a larger logit, or the same with a lower id.
#[derive(Clone, Copy, PartialEq)]
pub struct Ranked {
    pub logit: f32,
    pub token: u32,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_logit = self.logit.partial_cmp(&other.logit).unwrap_or(Ordering::Equal);
        by_logit.then(other.token.cmp(&self.token))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Ranked {}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn literal_cases() {
        let logits = [1.0, 3.0, -2.0, 3.0, f32::NEG_INFINITY, 2.0];
        assert_eq!(largest(&logits, 1), [1]);
        assert_eq!(largest(&logits, 4), [1, 3, 5, 0]);
        assert_eq!(largest(&logits, 99), [1, 3, 5, 0, 2, 4]);
        assert!(largest(&logits, 0).is_empty());
    }

    #[test]
    fn equals_a_full_sort_with_many_ties() {
        let logits: Vec<f32> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 22) as f32).collect();
        let mut order: Vec<u32> = (0..5000).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        for k in [1, 2, 63, 64, 65, 1000, 4999, 5000] {
            assert_eq!(largest(&logits, k), order[..k], "k = {k}");
        }
    }
}
