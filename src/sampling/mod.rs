//! Sampling: one row of logits in, a token and its logprob out, the same for the same seed whatever else runs.

mod exp;
mod rng;
mod stop;
mod temperature;
mod top_k;
mod top_p;

pub use stop::StopState;
pub use temperature::Tempered;

use crate::command::{SamplingParams, TopK};
use crate::error::Result;
use rng::Purpose;

/// A generated token and its logprob under log-softmax(logits / T), never renormalised for top-k or top-p; at T = 0
/// (greedy) under log-softmax(logits) (protocol §7.13).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    pub logprob: f32,
}

/// A token that could be drawn and its unnormalised probability.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    token: u32,
    mass: f64,
}

/// Draws the token at `position` (counted from the first generated token) of sample `sample_index` from `logits`, (V,).
///
/// Temperature first, then top-k, then top-p over what top-k left, renormalised. Ties go to the lower id. The draw
/// depends on the seed, the sample's index and the position alone.
///
/// # Errors
/// A user error when the logits hold NaN or +∞, or nothing above −∞: the weights have diverged.
pub fn sample(logits: &[f32], params: &SamplingParams, sample_index: u32, position: u32) -> Result<Choice> {
    let distribution = Tempered::new(logits, params.temperature)?;
    let token = if params.temperature == 0.0 {
        distribution.most_likely()
    } else {
        let u = rng::uniform(Purpose::Sample, params.seed, sample_index, position);
        draw(&distribution, params.top_k, params.top_p, u)
    };
    Ok(Choice { token, logprob: distribution.logprob(token) })
}

/// The k most likely tokens with their logprobs under log-softmax(logits / temperature), best first, ties by id;
/// all V of them when k is larger. Prompts take temperature 1, samples their own.
///
/// # Errors
/// As for [`sample`].
pub fn top_k_logprobs(logits: &[f32], k: usize, temperature: f32) -> Result<TopK> {
    let distribution = Tempered::new(logits, temperature)?;
    Ok(top_k::largest(logits, k).into_iter().map(|token| (token, distribution.logprob(token))).collect())
}

/// k tokens drawn independently (so possibly equal) at temperature 1 for prompt position `position`, in the order drawn.
///
/// # Errors
/// As for [`sample`].
pub fn alternatives(logits: &[f32], k: usize, seed: u64, position: u32) -> Result<TopK> {
    let distribution = Tempered::new(logits, 1.0)?;
    let one = |i: usize| {
        let token = distribution.draw(rng::uniform(Purpose::Alternative, seed, i as u32, position));
        (token, distribution.logprob(token))
    };
    Ok((0..k).map(one).collect())
}

fn draw(distribution: &Tempered, k: usize, p: f32, u: f64) -> u32 {
    let limits_k = k > 0 && k < distribution.logits().len();
    match (limits_k, p < 1.0) {
        (false, false) => distribution.draw(u),
        (false, true) => draw_among(&top_p::nucleus(distribution, p), u),
        (true, limits_p) => {
            let candidate = |token| Candidate { token, mass: distribution.mass(token) };
            let mut kept: Vec<_> = top_k::largest(distribution.logits(), k).into_iter().map(candidate).collect();
            if limits_p {
                kept.truncate(top_p::nucleus_len(&kept, p));
            }
            draw_among(&kept, u)
        }
    }
}

/// Inverse CDF over the candidates in their order, with `u` in [0, 1).
fn draw_among(kept: &[Candidate], u: f64) -> u32 {
    let target = u * kept.iter().map(|c| c.mass).sum::<f64>();
    let mut reached = 0.0;
    for c in kept {
        reached += c.mass;
        if reached > target {
            return c.token;
        }
    }
    unreachable!("the same sum in the same order ends above any smaller target")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Stop;

    fn params(temperature: f32, top_k: usize, top_p: f32) -> SamplingParams {
        SamplingParams { max_tokens: 1, seed: 7, stop: Stop::Never, temperature, top_k, top_p }
    }

    /// Logits whose probabilities at temperature 1 are `p`.
    fn logits_of(p: &[f64]) -> Vec<f32> {
        p.iter().map(|p| p.ln() as f32 + 3.0).collect()
    }

    fn frequencies(logits: &[f32], params: &SamplingParams, n: u32) -> Vec<f64> {
        let mut counts = vec![0u32; logits.len()];
        for i in 0..n {
            counts[sample(logits, params, i, 0).unwrap().token as usize] += 1;
        }
        counts.into_iter().map(|c| f64::from(c) / f64::from(n)).collect()
    }

    /// Within five standard deviations of `want` for `n` draws.
    fn fits(got: &[f64], want: &[f64], n: u32) {
        for (token, (g, w)) in got.iter().zip(want).enumerate() {
            let limit = 5.0 * (w * (1.0 - w) / f64::from(n)).sqrt();
            assert!((g - w).abs() <= limit, "token {token}: drawn with frequency {g}, probability {w}");
        }
    }

    #[test]
    fn frequencies_follow_the_tempered_distribution() {
        let p = [0.5, 0.2, 0.0, 0.3];
        let n = 20_000;
        fits(&frequencies(&logits_of(&p), &params(1.0, 0, 1.0), n), &p, n);
        let squares: Vec<f64> = p.iter().map(|p| p * p / 0.38).collect();
        fits(&frequencies(&logits_of(&p), &params(0.5, 0, 1.0), n), &squares, n);
    }

    #[test]
    fn top_k_then_top_p_over_what_is_left() {
        let p = [0.1, 0.4, 0.2, 0.3];
        let n = 20_000;
        fits(&frequencies(&logits_of(&p), &params(1.0, 2, 1.0), n), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0], n);
        // of the whole, 0.6 needs tokens 1 and 3; of the two left by top-k, 4/7 < 0.6 needs both as well, 0.5 only one
        fits(&frequencies(&logits_of(&p), &params(1.0, 0, 0.6), n), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0], n);
        fits(&frequencies(&logits_of(&p), &params(1.0, 2, 0.6), n), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0], n);
        fits(&frequencies(&logits_of(&p), &params(1.0, 2, 0.5), n), &[0.0, 1.0, 0.0, 0.0], n);
        fits(&frequencies(&logits_of(&p), &params(1.0, 0, 0.5), n), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0], n);
    }

    #[test]
    fn logprobs_are_tempered_and_never_renormalised() {
        let p = [0.5f64, 0.2, 0.3];
        let logits = logits_of(&p);
        let greedy = sample(&logits, &params(0.0, 0, 1.0), 0, 0).unwrap();
        assert_eq!(greedy.token, 0);
        assert!((f64::from(greedy.logprob) - 0.5f64.ln()).abs() < 1e-6, "greedy is scored at temperature 1");
        let one = sample(&logits, &params(1.0, 1, 0.1), 0, 0).unwrap();
        assert_eq!(one, greedy, "the only token left keeps its logprob");
        let half = sample(&logits, &params(0.5, 1, 1.0), 0, 0).unwrap();
        assert!((f64::from(half.logprob) - (0.25f64 / 0.38).ln()).abs() < 1e-6);
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let logits = [1.0, 5.0, 5.0, 5.0];
        assert_eq!(sample(&logits, &params(0.0, 0, 1.0), 0, 0).unwrap().token, 1);
        for i in 0..50 {
            assert_eq!(sample(&logits, &params(1.0, 1, 1.0), i, 0).unwrap().token, 1);
            assert_eq!(sample(&logits, &params(1.0, 0, 1e-6), i, 0).unwrap().token, 1);
            assert!(sample(&logits, &params(1.0, 2, 1.0), i, 0).unwrap().token <= 2);
        }
    }

    #[test]
    fn a_draw_depends_on_seed_index_and_position_alone() {
        let logits: Vec<f32> = (0..1000).map(|i| (i % 17) as f32 * 0.1).collect();
        let at = |seed, index, position| {
            sample(&logits, &SamplingParams { seed, ..params(1.0, 0, 1.0) }, index, position).unwrap().token
        };
        assert_eq!(at(1, 2, 3), at(1, 2, 3));
        let others = [at(1, 2, 3), at(2, 2, 3), at(1, 3, 2), at(1, 2, 4), at(3, 2, 1)];
        let distinct: std::collections::HashSet<u32> = others.into_iter().collect();
        assert!(distinct.len() >= 4, "{others:?}");
    }

    #[test]
    fn top_k_logprobs_are_sorted_and_tempered() {
        let logits = logits_of(&[0.1, 0.4, 0.1, 0.4]);
        let top = top_k_logprobs(&logits, 3, 1.0).unwrap();
        assert_eq!(top.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [1, 3, 0]);
        assert!((top[2].1 - 0.1f32.ln()).abs() < 1e-6);
        assert_eq!(top_k_logprobs(&logits, 9, 1.0).unwrap().len(), 4);
        let tempered = top_k_logprobs(&logits, 1, 0.5).unwrap();
        assert!((f64::from(tempered[0].1) - (0.16f64 / 0.34).ln()).abs() < 1e-6);
        assert_eq!(Tempered::new(&logits, 1.0).unwrap().logprob(0), top[2].1);
    }

    #[test]
    fn alternatives_follow_the_distribution_and_repeat() {
        let p = [0.6, 0.1, 0.3];
        let rows = alternatives(&logits_of(&p), 20_000, 5, 2).unwrap();
        let mut got = [0.0; 3];
        for (token, logprob) in &rows {
            got[*token as usize] += 1.0 / rows.len() as f64;
            assert!((f64::from(*logprob) - p[*token as usize].ln()).abs() < 1e-6);
        }
        fits(&got, &p, rows.len() as u32);
        assert_eq!(rows[..9], alternatives(&logits_of(&p), 9, 5, 2).unwrap()[..]);
        assert_ne!(rows[..50], alternatives(&logits_of(&p), 50, 5, 3).unwrap()[..]);
    }

    #[test]
    fn diverged_logits_are_a_user_error_that_names_the_token() {
        for bad in [f32::NAN, f32::INFINITY] {
            for p in [params(1.0, 0, 1.0), params(0.0, 0, 1.0), params(1.0, 2, 0.9)] {
                let e = sample(&[0.0, 1.0, bad, 2.0], &p, 0, 0).unwrap_err();
                assert!(e.message.contains("token 2") && e.wire_category() == "user", "{}", e.message);
            }
        }
        assert!(sample(&[f32::NEG_INFINITY; 3], &params(1.0, 0, 1.0), 0, 0).is_err());
    }
}
