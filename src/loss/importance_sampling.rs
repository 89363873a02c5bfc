//! Importance sampling: −Σ r·A with r = exp(lp − q) (protocol §14.2).

use super::DatumLoss;
use super::policy::{Policy, Term};
use crate::command::Datum;
use crate::error::Result;

/// The derivative is −r·A, since dr/dlp = r. With lp = q it is REINFORCE's.
pub fn evaluate(datum: &Datum, logprobs: &[f32]) -> Result<DatumLoss> {
    Policy::of("importance_sampling", datum, logprobs)?.sum(|t| {
        let ratio = t.ratio();
        let gain = ratio * t.advantage;
        Term { value: -gain, derivative: -gain, ratio, clipped: false }
    })
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{all_close, check_derivative, close, policy_datum};
    use crate::command::Loss;

    #[test]
    fn literal_case() {
        let (two, half) = (f32::ln(2.0), -f32::ln(2.0));
        let datum = policy_datum(&[-1.0, -1.0, -1.0], &[3.0, -2.0, 0.0]);
        let out = evaluate(&Loss::ImportanceSampling, &datum, &[-1.0 + two, -1.0 + half, -5.0]).unwrap();
        close(out.value, -(2.0 * 3.0 - 0.5 * 2.0));
        all_close(&out.d_logprobs, &[-6.0, 1.0, 0.0]);
    }

    #[test]
    fn derivative_matches_differences() {
        check_derivative(&Loss::ImportanceSampling, &policy_datum(&[-1.0, -2.0], &[1.5, -0.5]), &[-1.25, -1.5]);
    }
}
