//! `stable_reinforce` in this project's own reading: REINFORCE with a truncated importance ratio and a pull to the sampler.

use super::DatumLoss;
use super::cispo::weighted_reinforce;
use super::policy::{Policy, Term, Token};
use crate::command::Datum;
use crate::error::Result;

/// Limit C of the importance ratio, cispo's default upper limit.
const MAX_RATIO: f64 = 4.0;

/// The hosted service does not publish this loss (protocol §14.3). What we compute, over the tokens with A ≠ 0:
///
/// ```text
/// −Σ ( sg(min(r, C))·lp·A − kl_coeff·k(d) ),   r = exp(d),  d = lp − q,  C = 4
/// k(d) = exp(d) − 1 − d                        for d ≤ ln C
///        C − 1 − ln C + (C − 1)·(d − ln C)     beyond
/// ```
///
/// Why: on-policy (r = 1) the gradient is REINFORCE's, −A. With stale samples the ratio removes their bias, and its upper
/// limit bounds what one token can do; a ratio near 0 silences tokens that the policy has left behind, and no token loses
/// its gradient by being clipped. k is the k3 estimator: the samples came from q, so its expectation is KL(q ‖ policy),
/// it is never negative, and its slope exp(d) − 1 pulls back from both sides. Beyond the limit it goes on along its
/// tangent, so that its slope is bounded like the ratio. With `kl_coeff` 0 the loss equals cispo with limits 0 and 4.
///
/// The derivative is −min(r, C)·A + kl_coeff·(min(r, C) − 1).
pub fn evaluate(datum: &Datum, logprobs: &[f32], kl_coeff: f64) -> Result<DatumLoss> {
    Policy::of("stable_reinforce", datum, logprobs)?.with_clip_fraction().sum(|t| {
        let reinforce = weighted_reinforce(t, 0.0, MAX_RATIO);
        if kl_coeff == 0.0 {
            return reinforce;
        }
        let (kl, slope) = kl_estimate(t);
        let (value, derivative) = (reinforce.value + kl_coeff * kl, reinforce.derivative + kl_coeff * slope);
        Term { value, derivative, ..reinforce }
    })
}

/// k(d) and its slope.
fn kl_estimate(token: &Token) -> (f64, f64) {
    let d = token.log_ratio();
    let limit = MAX_RATIO.ln();
    if d > limit {
        let slope = MAX_RATIO - 1.0;
        (slope - limit + slope * (d - limit), slope)
    } else {
        // exp_m1 keeps the digits where policy and sampler nearly agree.
        (d.exp_m1() - d, d.exp_m1())
    }
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{all_close, close, numeric_derivative, policy_datum};
    use super::MAX_RATIO;
    use crate::command::Loss;

    #[test]
    fn on_policy_it_is_reinforce() {
        let loss = Loss::StableReinforce { kl_coeff: 0.5 };
        let out = evaluate(&loss, &policy_datum(&[-1.0, -2.0], &[1.0, -3.0]), &[-1.0, -2.0]).unwrap();
        close(out.value, 1.0 - 6.0);
        assert_eq!(out.d_logprobs, [-1.0, 3.0]);
    }

    #[test]
    fn without_kl_it_equals_cispo_with_limits_0_and_4() {
        let datum = policy_datum(&[-1.0, -4.0, -1.0], &[1.0, -3.0, 2.0]);
        let lp = [-1.5, -1.0, -9.0];
        let ours = evaluate(&Loss::StableReinforce { kl_coeff: 0.0 }, &datum, &lp).unwrap();
        assert_eq!(ours, evaluate(&Loss::Cispo { clip_low: 0.0, clip_high: 4.0 }, &datum, &lp).unwrap());
    }

    #[test]
    fn literal_case_within_and_beyond_the_limit() {
        let two = f32::ln(2.0);
        let eight = 3.0 * two;
        let loss = Loss::StableReinforce { kl_coeff: 0.1 };
        let lp = [-3.0 + two, -3.0 + eight];
        let out = evaluate(&loss, &policy_datum(&[-3.0, -3.0], &[1.0, 1.0]), &lp).unwrap();
        let ln2 = 2f64.ln();
        let within = -2.0 * f64::from(lp[0]) + 0.1 * (1.0 - ln2);
        let beyond = -4.0 * f64::from(lp[1]) + 0.1 * (3.0 - 2.0 * ln2 + 3.0 * ln2);
        close(out.value, within + beyond);
        all_close(&out.d_logprobs, &[-2.0 + 0.1, -4.0 + 0.3]);
        assert_eq!(out.metrics.unwrap().clip_fraction, Some(0.5));
    }

    #[test]
    fn a_huge_ratio_stays_bounded() {
        let loss = Loss::StableReinforce { kl_coeff: 1.0 };
        let out = evaluate(&loss, &policy_datum(&[-5000.0], &[-1.0]), &[-1.0]).unwrap();
        assert!(out.value.is_finite());
        all_close(&out.d_logprobs, &[4.0 + 3.0]);
    }

    #[test]
    fn derivative_matches_differences_with_the_ratio_held() {
        let (q, lp, advantages) = ([-2.0f32, -2.0, -5.0], [-1.5f32, -3.0, -1.0], [1.0f32, -2.0, 0.5]);
        let held = |x: &[f32]| -> f64 {
            let term = |i: usize| {
                let (a, q) = (f64::from(advantages[i]), f64::from(q[i]));
                let ratio = (f64::from(lp[i]) - q).exp().min(MAX_RATIO);
                let d = f64::from(x[i]) - q;
                let limit = MAX_RATIO.ln();
                let k = if d <= limit { d.exp() - 1.0 - d } else { 3.0 - limit + 3.0 * (d - limit) };
                -ratio * f64::from(x[i]) * a + 0.25 * k
            };
            (0..3).map(term).sum()
        };
        let out = evaluate(&Loss::StableReinforce { kl_coeff: 0.25 }, &policy_datum(&q, &advantages), &lp).unwrap();
        close(out.value, held(&lp));
        let want = numeric_derivative(held, &lp);
        for (got, want) in out.d_logprobs.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 2e-6, "{got} vs {want}");
        }
    }
}
