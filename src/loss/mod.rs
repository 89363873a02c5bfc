//! Loss functions: logprobs of the targets in, value and closed-form derivative out, per datum, in f64 on the host.

mod cispo;
mod cross_entropy;
pub mod custom;
mod dro;
mod gspo;
mod importance_sampling;
mod metrics;
mod policy;
mod ppo;
mod stable_reinforce;

pub use metrics::{PolicyMetrics, combine};

use std::sync::Arc;

use crate::command::{Datum, Loss};
use crate::error::Result;

/// What one datum adds to the loss of its request.
#[derive(Clone, Debug, PartialEq)]
pub struct DatumLoss {
    /// Plain sum over the datum's tokens, never divided by anything (protocol §14.1). Finite.
    pub value: f64,
    /// Derivative of `value` with respect to each logprob, (T, K) row-major as the logprobs. Finite.
    pub d_logprobs: Vec<f32>,
    /// How far the policy has moved from the sampler; `None` for a loss that has no sampler.
    pub metrics: Option<PolicyMetrics>,
    /// What a custom loss reports: `custom/NAME:sum` or `custom/NAME:mean`.
    pub custom: Vec<(Arc<str>, f64)>,
}

/// Evaluates `loss` on one datum, whose targets have `logprobs`, (T, K) row-major, at temperature 1.
///
/// Positions whose coefficient is exactly zero (weight 0, advantage 0) contribute exactly 0 to value and derivative,
/// whatever their logprob or ratio is. Missing weights count as ones.
///
/// # Errors
/// A user error, without the datum's index (the caller knows it), when a needed loss input is missing, or when value or
/// derivative is not finite; the text then names the position and the numbers that met there.
pub fn evaluate(loss: &Loss, datum: &Datum, logprobs: &[f32]) -> Result<DatumLoss> {
    assert_eq!(logprobs.len(), datum.targets.len(), "one logprob per target");
    match loss {
        Loss::CrossEntropy => cross_entropy::evaluate(datum, logprobs),
        Loss::ImportanceSampling => importance_sampling::evaluate(datum, logprobs),
        Loss::Ppo { clip_low, clip_high } => ppo::evaluate(datum, logprobs, *clip_low, *clip_high),
        Loss::Cispo { clip_low, clip_high } => cispo::evaluate(datum, logprobs, *clip_low, *clip_high),
        Loss::Dro { beta } => dro::evaluate(datum, logprobs, *beta),
        Loss::Gspo { clip_low, clip_high } => gspo::evaluate(datum, logprobs, *clip_low, *clip_high),
        Loss::StableReinforce { kl_coeff } => stable_reinforce::evaluate(datum, logprobs, *kl_coeff),
        Loss::Custom(program) => program.evaluate(datum, logprobs),
    }
}

#[cfg(test)]
mod fixtures {
    //! Datums and the finite-difference check that the tests of every loss share.

    use super::*;
    use crate::command::LossInputs;

    /// A datum of T = `q.len()` positions for a policy loss.
    pub fn policy_datum(q: &[f32], advantages: &[f32]) -> Datum {
        assert_eq!(q.len(), advantages.len());
        Datum {
            tokens: vec![1; q.len()],
            targets: vec![2; q.len()],
            k: 1,
            two_dimensional: false,
            inputs: LossInputs {
                logprobs: Some(q.to_vec()),
                advantages: Some(advantages.to_vec()),
                ..LossInputs::default()
            },
        }
    }

    pub fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "got {got}, want {want}");
    }

    pub fn all_close(got: &[f32], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(*g) - w).abs() <= 1e-6 * w.abs().max(1.0), "entry {i}: got {g}, want {w}");
        }
    }

    /// The derivative of `value` at each logprob by central differences; steps are powers of two, exact in f32.
    pub fn numeric_derivative(value: impl Fn(&[f32]) -> f64, logprobs: &[f32]) -> Vec<f64> {
        let h = 1.0 / 1024.0;
        let shifted = |i: usize, by: f32| {
            let mut lp = logprobs.to_vec();
            lp[i] += by;
            (value(&lp), f64::from(lp[i]))
        };
        (0..logprobs.len())
            .map(|i| {
                let ((up, x_up), (down, x_down)) = (shifted(i, h), shifted(i, -h));
                (up - down) / (x_up - x_down)
            })
            .collect()
    }

    /// Value and derivative of `loss` must belong together, at `logprobs` away from any clip limit.
    pub fn check_derivative(loss: &Loss, datum: &Datum, logprobs: &[f32]) {
        let value = |lp: &[f32]| evaluate(loss, datum, lp).unwrap().value;
        let want = numeric_derivative(value, logprobs);
        let got = evaluate(loss, datum, logprobs).unwrap().d_logprobs;
        assert!(want.iter().any(|d| d.abs() > 1e-3), "the check is void: no derivative differs from 0");
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!(
                (f64::from(*g) - w).abs() <= 2e-5 * w.abs().max(1.0),
                "logprob {i}: closed form {g}, differences {w}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::policy_datum;
    use super::*;

    const POLICY_LOSSES: [Loss; 6] = [
        Loss::ImportanceSampling,
        Loss::Ppo { clip_low: 0.8, clip_high: 1.2 },
        Loss::Cispo { clip_low: 0.0, clip_high: 4.0 },
        Loss::Gspo { clip_low: 0.8, clip_high: 1.2 },
        Loss::StableReinforce { kl_coeff: 0.1 },
        Loss::Dro { beta: 0.0 },
    ];

    fn with_mask(mut datum: Datum, mask: &[f32]) -> Datum {
        datum.inputs.sequence_ratio_mask = Some(mask.to_vec());
        datum
    }

    #[test]
    fn zero_advantage_is_exactly_zero_even_where_the_ratio_overflows() {
        let bad = [f32::NEG_INFINITY, f32::NAN, 0.0];
        let datum = with_mask(policy_datum(&[-1.0, -2.0, -3e38], &[0.0; 3]), &[1.0; 3]);
        for loss in POLICY_LOSSES {
            let out = evaluate(&loss, &datum, &bad).unwrap();
            assert_eq!(out.value, 0.0, "{loss:?}");
            assert_eq!(out.d_logprobs, [0.0; 3], "{loss:?}");
        }
    }

    #[test]
    fn zero_weight_is_exactly_zero_even_with_an_advantage() {
        let mut datum = with_mask(policy_datum(&[-1.0, -2.0, -0.5], &[1.0, -1.0, 2.0]), &[0.0, 0.0, 1.0]);
        datum.inputs.weights = Some(vec![0.0, 0.0, 0.5]);
        for loss in POLICY_LOSSES {
            let out = evaluate(&loss, &datum, &[f32::NAN, f32::NEG_INFINITY, -0.5]).unwrap();
            assert!(out.value.is_finite(), "{loss:?}");
            assert_eq!(out.d_logprobs, [0.0, 0.0, -1.0], "on-policy derivative is -w A: {loss:?}");
        }
    }

    #[test]
    fn a_ratio_that_overflows_is_a_user_error_that_names_the_position() {
        let datum = policy_datum(&[-1.0, -900.0], &[1.0, 1.0]);
        let e = evaluate(&Loss::ImportanceSampling, &datum, &[-1.0, -1.0]).unwrap_err();
        assert_eq!(e.wire_category(), "user");
        for part in ["importance_sampling", "position 1", "-900", "logprob -1"] {
            assert!(e.message.contains(part), "{}", e.message);
        }
    }

    #[test]
    fn nan_logprobs_are_refused_where_they_count() {
        let datum = with_mask(policy_datum(&[-1.0], &[-1.0]), &[1.0]);
        for loss in POLICY_LOSSES {
            assert!(evaluate(&loss, &datum, &[f32::NAN]).is_err(), "{loss:?}");
        }
    }

    #[test]
    fn missing_inputs_are_named() {
        let mut datum = policy_datum(&[-1.0], &[1.0]);
        let e = evaluate(&Loss::Gspo { clip_low: 0.8, clip_high: 1.2 }, &datum, &[-1.0]).unwrap_err();
        assert!(e.message.contains("gspo") && e.message.contains("sequence_ratio_mask"), "{}", e.message);
        datum.inputs.advantages = None;
        let e = evaluate(&Loss::ImportanceSampling, &datum, &[-1.0]).unwrap_err();
        assert!(e.message.contains("advantages"), "{}", e.message);
        datum.inputs.logprobs = None;
        let e = evaluate(&Loss::Dro { beta: 0.1 }, &datum, &[-1.0]).unwrap_err();
        assert!(e.message.contains("logprobs"), "{}", e.message);
    }

    #[test]
    fn weights_scale_value_and_derivative_of_policy_losses() {
        let lp = [-1.1, -0.4, -2.0];
        let plain = with_mask(policy_datum(&[-1.0, -0.5, -1.9], &[1.0, -2.0, 0.5]), &[1.0; 3]);
        let mut weighted = plain.clone();
        weighted.inputs.weights = Some(vec![3.0; 3]);
        for loss in POLICY_LOSSES {
            let (one, three) = (evaluate(&loss, &plain, &lp).unwrap(), evaluate(&loss, &weighted, &lp).unwrap());
            super::fixtures::close(three.value, 3.0 * one.value);
            let tripled: Vec<f64> = one.d_logprobs.iter().map(|d| 3.0 * f64::from(*d)).collect();
            super::fixtures::all_close(&three.d_logprobs, &tripled);
        }
    }
}
