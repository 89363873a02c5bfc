//! Nucleus sampling: the smallest set of most likely tokens whose probability reaches p.

use std::cmp::Reverse;

use super::Candidate;
use super::temperature::{Tempered, max_of};
use super::top_k::Ranked;

/// The logits are sorted into bins of equal width in (logit − max) / T; below the last bin's start no f32 mass is left.
const BINS: usize = 2048;
const BINS_PER_NAT: f32 = BINS as f32 / 87.0;
/// Logits that are worked on together, and skipped together when none of them belongs to the nucleus.
const CHUNK: usize = 64;

/// Length of the nucleus among `sorted` candidates, best first: those before which less than `p` of their mass was
/// collected; at least one.
pub fn nucleus_len(sorted: &[Candidate], p: f32) -> usize {
    let target = f64::from(p) * sorted.iter().map(|c| c.mass).sum::<f64>();
    first_to_reach(sorted, 0.0, target)
}

/// The nucleus over the whole vocabulary. No full sort: masses are collected in bins by their logit, every bin
/// before the one in which `p` is reached belongs to the nucleus as a whole, and only that one is sorted.
pub fn nucleus(distribution: &Tempered, p: f32) -> Vec<Candidate> {
    let masses = masses_of_bins(distribution);
    let target = f64::from(p) * masses.iter().sum::<f64>();
    let (mut last_bin, mut before) = (0, 0.0);
    while last_bin + 1 < BINS && before + masses[last_bin] < target {
        before += masses[last_bin];
        last_bin += 1;
    }

    let (mut kept, mut border) = (Vec::new(), Vec::new());
    for (c, chunk) in distribution.logits().chunks(CHUNK).enumerate() {
        if bin(distribution, max_of(chunk)) > last_bin {
            continue;
        }
        for (i, &logit) in chunk.iter().enumerate() {
            let (b, token) = (bin(distribution, logit), (c * CHUNK + i) as u32);
            if b < last_bin {
                kept.push(Candidate { token, mass: distribution.mass(token) });
            } else if b == last_bin {
                border.push(Ranked { logit, token });
            }
        }
    }
    border.sort_unstable_by_key(|&r| Reverse(r));
    let border: Vec<_> =
        border.iter().map(|r| Candidate { token: r.token, mass: distribution.mass(r.token) }).collect();
    kept.extend_from_slice(&border[..first_to_reach(&border, before, target)]);
    kept
}

fn masses_of_bins(distribution: &Tempered) -> Vec<f64> {
    let mut bins = vec![0.0; BINS];
    let mut masses = [0.0; CHUNK];
    for (c, chunk) in distribution.logits().chunks(CHUNK).enumerate() {
        distribution.masses(c * CHUNK, &mut masses[..chunk.len()]);
        for (&logit, &mass) in chunk.iter().zip(&masses) {
            bins[bin(distribution, logit)] += f64::from(mass);
        }
    }
    bins
}

/// How many of `sorted` it takes to get from `before` to `target`; at least one, all if even they do not suffice.
fn first_to_reach(sorted: &[Candidate], before: f64, target: f64) -> usize {
    let mut reached = before;
    for (i, c) in sorted.iter().enumerate() {
        reached += c.mass;
        if reached >= target {
            return i + 1;
        }
    }
    sorted.len()
}

/// Never decreases as the logit falls.
#[inline(always)]
fn bin(distribution: &Tempered, logit: f32) -> usize {
    ((-distribution.scaled(logit) * BINS_PER_NAT) as usize).min(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::super::top_k::largest;
    use super::*;

    fn tokens(kept: &[Candidate]) -> Vec<u32> {
        let mut ids: Vec<u32> = kept.iter().map(|c| c.token).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn literal_cases() {
        let p = [0.125f32, 0.5, 0.125, 0.25];
        let logits = p.map(f32::ln);
        let d = Tempered::new(&logits, 1.0).unwrap();
        for (top_p, want) in [
            (0.0, vec![1]),
            (0.3, vec![1]),
            (0.4999, vec![1]),
            (0.51, vec![1, 3]),
            (0.76, vec![0, 1, 3]),
            (0.88, vec![0, 1, 2, 3]),
        ] {
            assert_eq!(tokens(&nucleus(&d, top_p)), want, "top_p {top_p}");
        }
    }

    #[test]
    fn equals_a_full_sort() {
        let peaked: Vec<f32> =
            (0..4000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 * 12.0).collect();
        let tied: Vec<f32> = peaked.iter().map(|x| x.round()).collect();
        let flat = vec![0.5f32; 4000];
        for logits in [peaked, tied, flat] {
            for (t, p) in [(1.0, 0.01), (1.0, 0.5), (0.4, 0.9), (2.0, 0.95), (1.0, 0.999_999)] {
                let d = Tempered::new(&logits, t).unwrap();
                let all: Vec<_> = largest(&logits, logits.len())
                    .into_iter()
                    .map(|token| Candidate { token, mass: d.mass(token) })
                    .collect();
                let want = tokens(&all[..nucleus_len(&all, p)]);
                let got = tokens(&nucleus(&d, p));
                // the order of summation may decide about the one token at the border
                let common = got.iter().filter(|t| want.binary_search(t).is_ok()).count();
                assert!(got.len().abs_diff(want.len()) <= 1 && common == got.len().min(want.len()), "T {t}, p {p}");
            }
        }
    }
}
