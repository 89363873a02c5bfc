//! PPO's clipped surrogate: −Σ min(r·A, clip(r, low, high)·A) with r = exp(lp − q) (protocol §14.2).

use super::DatumLoss;
use super::policy::{Policy, pessimistic};
use crate::command::Datum;
use crate::error::Result;

/// `low` and `high` bound the ratio itself. The derivative is −r·A where the unclipped branch is the minimum (ties
/// included), else 0: no reward for moving further out, but always a way back.
pub fn evaluate(datum: &Datum, logprobs: &[f32], low: f64, high: f64) -> Result<DatumLoss> {
    Policy::of("ppo", datum, logprobs)?.with_clip_fraction().sum(|t| pessimistic(t.ratio(), t.advantage, low, high))
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{all_close, check_derivative, close, policy_datum};
    use crate::command::Loss;

    const PPO: Loss = Loss::Ppo { clip_low: 0.8, clip_high: 1.25 };

    #[test]
    fn all_four_branches() {
        // ratio 2 and 1/2, each with both signs of the advantage
        let two = f32::ln(2.0);
        let datum = policy_datum(&[-1.0; 4], &[1.0, -1.0, 1.0, -1.0]);
        let out = evaluate(&PPO, &datum, &[-1.0 + two, -1.0 + two, -1.0 - two, -1.0 - two]).unwrap();
        // clipped at 1.25; free at 2; free at 1/2; clipped at 0.8
        close(out.value, -1.25 + 2.0 - 0.5 + 0.8);
        all_close(&out.d_logprobs, &[0.0, 2.0, -0.5, 0.0]);
        assert_eq!(out.metrics.unwrap().clip_fraction, Some(0.5));
    }

    #[test]
    fn a_tie_is_unclipped() {
        let edge = Loss::Ppo { clip_low: 0.5, clip_high: 1.0 };
        let out = evaluate(&edge, &policy_datum(&[-1.0, -1.0], &[2.0, -2.0]), &[-1.0, -1.0]).unwrap();
        assert_eq!(out.d_logprobs, [-2.0, 2.0]);
        assert_eq!(out.metrics.unwrap().clip_fraction, Some(0.0));
    }

    #[test]
    fn an_overflowing_ratio_is_harmless_where_it_is_clipped_and_refused_where_it_is_not() {
        let out = evaluate(&PPO, &policy_datum(&[-2000.0], &[1.0]), &[-1.0]).unwrap();
        assert_eq!((out.value, out.d_logprobs), (-1.25, vec![0.0]));
        assert!(evaluate(&PPO, &policy_datum(&[-2000.0], &[-1.0]), &[-1.0]).is_err());
    }

    #[test]
    fn derivative_matches_differences() {
        let datum = policy_datum(&[-1.0, -1.0, -1.0, -1.0, -1.0], &[1.0, -1.0, 1.0, -1.0, 0.7]);
        check_derivative(&PPO, &datum, &[-0.5, -0.5, -1.5, -1.5, -1.0625]);
    }
}
