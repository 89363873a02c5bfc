//! GSPO: PPO's clipping with one ratio per sequence, the geometric mean over the masked tokens (protocol §14.2).

use super::DatumLoss;
use super::policy::{Policy, pessimistic, required};
use crate::command::Datum;
use crate::error::Result;

/// M = {t : mask_t ≠ 0}, ℓ = mean over M of (sg(lp) − q), s_t = exp(ℓ + lp_t − sg(lp_t)), and the loss is
/// −Σ min(s_t·A, clip(s_t, low, high)·A) over all t. Each s_t has the value exp(ℓ) and the derivative exp(ℓ) at its own
/// lp_t only, so the derivative is −exp(ℓ)·A where the unclipped branch is the minimum, else 0. An empty M gives 0.
pub fn evaluate(datum: &Datum, logprobs: &[f32], low: f64, high: f64) -> Result<DatumLoss> {
    let mask = required("gspo", "sequence_ratio_mask", datum.inputs.sequence_ratio_mask.as_deref())?;
    let policy = Policy::of("gspo", datum, logprobs)?.with_clip_fraction();
    match policy.mean_log_ratio(mask) {
        Some(l) => policy.sum(|t| pessimistic(l.exp(), t.advantage, low, high)),
        None => policy.sum_where(|_| false, |t| pessimistic(t.ratio(), t.advantage, low, high)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{all_close, close, numeric_derivative, policy_datum};
    use super::super::policy::clip;
    use crate::command::{Datum, Loss};

    const GSPO: Loss = Loss::Gspo { clip_low: 0.8, clip_high: 1.25 };

    fn datum(q: &[f32], advantages: &[f32], mask: &[f32]) -> Datum {
        let mut d = policy_datum(q, advantages);
        d.inputs.sequence_ratio_mask = Some(mask.to_vec());
        d
    }

    #[test]
    fn the_ratio_is_the_masked_geometric_mean() {
        // log ratios 0.25 and −0.05 in the mask, 9 outside: ℓ = 0.1
        let d = datum(&[-1.0, -1.0, -10.0], &[2.0, -1.0, 0.5], &[1.0, 0.5, 0.0]);
        let out = evaluate(&GSPO, &d, &[-0.75, -1.05, -1.0]).unwrap();
        let s = 0.1f64.exp();
        close(out.value, -s * 1.5);
        all_close(&out.d_logprobs, &[-2.0 * s, s, -0.5 * s]);
    }

    #[test]
    fn clips_all_positive_tokens_when_the_sequence_is_above_the_limit() {
        let d = datum(&[-1.0, -1.0], &[1.0, -1.0], &[1.0, 1.0]);
        let out = evaluate(&GSPO, &d, &[-0.5, -0.5]).unwrap();
        close(out.value, -1.25 + 0.5f64.exp());
        all_close(&out.d_logprobs, &[0.0, 0.5f64.exp()]);
        let below = evaluate(&GSPO, &d, &[-1.5, -1.5]).unwrap();
        close(below.value, -(-0.5f64).exp() + 0.8);
        all_close(&below.d_logprobs, &[-(-0.5f64).exp(), 0.0]);
        assert_eq!(below.metrics.unwrap().clip_fraction, Some(0.5));
    }

    #[test]
    fn masked_positions_of_zero_advantage_count_in_the_ratio() {
        let d = datum(&[-1.0, -1.0], &[0.0, 1.0], &[1.0, 1.0]);
        let out = evaluate(&GSPO, &d, &[-0.8, -1.0]).unwrap();
        close(out.value, -0.1f64.exp());
        assert_eq!(out.d_logprobs[0], 0.0);
    }

    #[test]
    fn an_empty_mask_gives_zero_and_values_outside_it_do_no_harm() {
        let out = evaluate(&GSPO, &datum(&[-1.0], &[1.0], &[0.0]), &[-2.0]).unwrap();
        assert_eq!((out.value, out.d_logprobs), (0.0, vec![0.0]));
        let d = datum(&[-3e38, -1.0], &[0.0, 1.0], &[0.0, 1.0]);
        let out = evaluate(&GSPO, &d, &[f32::NAN, -1.0]).unwrap();
        assert_eq!((out.value, out.d_logprobs), (-1.0, vec![0.0, -1.0]));
    }

    #[test]
    fn derivative_matches_differences_with_the_sequence_ratio_held() {
        let (q, lp) = ([-1.0f32, -1.0, -1.0], [-0.75f32, -1.125, -1.0]);
        let advantages = [1.0f32, -2.0, 0.5];
        let l = lp.iter().zip(&q).map(|(l, q)| f64::from(l - q)).sum::<f64>() / 3.0;
        let held = |x: &[f32]| -> f64 {
            let term = |i: usize| {
                let s = (l + f64::from(x[i]) - f64::from(lp[i])).exp();
                let a = f64::from(advantages[i]);
                -(s * a).min(clip(s, 0.8, 1.25) * a)
            };
            (0..3).map(term).sum()
        };
        let out = evaluate(&GSPO, &datum(&q, &advantages, &[1.0; 3]), &lp).unwrap();
        close(out.value, held(&lp));
        all_close(&out.d_logprobs, &numeric_derivative(held, &lp));
    }
}
