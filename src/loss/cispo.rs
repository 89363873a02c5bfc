//! CISPO: REINFORCE weighted by a clipped importance ratio, −Σ sg(clip(r, low, high))·lp·A (protocol §14.2).

use super::DatumLoss;
use super::policy::{Policy, Term, Token, clip};
use crate::command::Datum;
use crate::error::Result;

/// The clipped ratio is a constant (sg), so the derivative is −clip(r)·A: a clipped token keeps its gradient.
pub fn evaluate(datum: &Datum, logprobs: &[f32], low: f64, high: f64) -> Result<DatumLoss> {
    Policy::of("cispo", datum, logprobs)?.with_clip_fraction().sum(|t| weighted_reinforce(t, low, high))
}

/// −c·lp with the constant c = clip(r)·A; exactly 0 when c is, also for lp = −∞.
pub fn weighted_reinforce(token: &Token, low: f64, high: f64) -> Term {
    let ratio = token.ratio();
    let clipped_ratio = clip(ratio, low, high);
    let coefficient = clipped_ratio * token.advantage;
    let value = if coefficient == 0.0 { 0.0 } else { -coefficient * token.logprob };
    Term { value, derivative: -coefficient, ratio, clipped: clipped_ratio != ratio }
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{all_close, close, numeric_derivative, policy_datum};
    use crate::command::Loss;

    #[test]
    fn literal_case_on_both_sides_of_the_limits() {
        let two = f32::ln(2.0);
        let loss = Loss::Cispo { clip_low: 0.75, clip_high: 1.5 };
        let datum = policy_datum(&[-1.0, -1.0, -1.0], &[1.0, -2.0, 3.0]);
        let lp = [-1.0 + two, -1.0 - two, -1.0];
        let out = evaluate(&loss, &datum, &lp).unwrap();
        let [a, b, c] = lp.map(f64::from);
        close(out.value, -(1.5 * a * 1.0 + 0.75 * b * -2.0 + c * 3.0));
        all_close(&out.d_logprobs, &[-1.5, 1.5, -3.0]);
        close(out.metrics.unwrap().clip_fraction.unwrap(), 2.0 / 3.0);
    }

    #[test]
    fn a_vanished_ratio_contributes_exactly_zero() {
        let loss = Loss::Cispo { clip_low: 0.0, clip_high: 4.0 };
        let out = evaluate(&loss, &policy_datum(&[-1.0], &[1.0]), &[f32::NEG_INFINITY]).unwrap();
        assert_eq!((out.value, out.d_logprobs), (0.0, vec![0.0]));
    }

    #[test]
    fn derivative_matches_differences_with_the_ratio_held() {
        let loss = Loss::Cispo { clip_low: 0.9, clip_high: 1.2 };
        let (q, lp, advantages) = ([-1.0f32, -1.0, -1.0], [-0.5f32, -1.5, -1.0625], [1.0f32, -2.0, 0.5]);
        let ratios: Vec<f64> = lp.iter().zip(&q).map(|(l, q)| f64::from(l - q).exp().clamp(0.9, 1.2)).collect();
        let held =
            |lp: &[f32]| -> f64 { (0..3).map(|i| -ratios[i] * f64::from(lp[i]) * f64::from(advantages[i])).sum() };
        let out = evaluate(&loss, &policy_datum(&q, &advantages), &lp).unwrap();
        close(out.value, held(&lp));
        all_close(&out.d_logprobs, &numeric_derivative(held, &lp));
    }
}
