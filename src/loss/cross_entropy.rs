//! Cross-entropy: −Σ w·lp over all positions and targets (protocol §14.2).

use super::DatumLoss;
use crate::command::Datum;
use crate::error::{Error, Result};

/// Weights are (T, K) and any real numbers: negative ones carry client-side custom losses back. The derivative is −w.
pub fn evaluate(datum: &Datum, logprobs: &[f32]) -> Result<DatumLoss> {
    let weights = datum.inputs.weights.as_deref();
    let mut value = 0.0;
    let mut d_logprobs = vec![0.0; logprobs.len()];
    for (i, (&lp, d_logprob)) in logprobs.iter().zip(&mut d_logprobs).enumerate() {
        let weight = weights.map_or(1.0, |w| w[i]);
        if weight == 0.0 {
            continue;
        }
        let term = -f64::from(weight) * f64::from(lp);
        if !term.is_finite() {
            let (t, k) = (i / datum.k, i % datum.k);
            return Err(Error::user(format!(
                "cross_entropy: the loss is not finite at position {t}, target {k}: logprob {lp}, weight {weight}"
            )));
        }
        value += term;
        *d_logprob = -weight;
    }
    Ok(DatumLoss { value, d_logprobs, metrics: None, custom: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{check_derivative, close};
    use crate::command::{Datum, Loss, LossInputs};

    fn datum(k: usize, weights: Option<&[f32]>) -> Datum {
        let inputs = LossInputs { weights: weights.map(<[f32]>::to_vec), ..LossInputs::default() };
        Datum { tokens: vec![1; 2], targets: vec![3; 2 * k], k, two_dimensional: k > 1, inputs }
    }

    #[test]
    fn sums_over_positions_and_targets() {
        let out =
            evaluate(&Loss::CrossEntropy, &datum(2, Some(&[0.5, -1.0, 2.0, 0.25])), &[-1.0, -2.0, -3.0, -4.0]).unwrap();
        close(out.value, 0.5 - 2.0 + 6.0 + 1.0);
        assert_eq!(out.d_logprobs, [-0.5, 1.0, -2.0, -0.25]);
        assert_eq!(out.metrics, None);
    }

    #[test]
    fn missing_weights_are_ones() {
        let out = evaluate(&Loss::CrossEntropy, &datum(1, None), &[-1.0, -2.5]).unwrap();
        close(out.value, 3.5);
        assert_eq!(out.d_logprobs, [-1.0, -1.0]);
    }

    #[test]
    fn zero_weights_hide_infinity_and_nan() {
        let d = datum(1, Some(&[0.0, -0.0]));
        let out = evaluate(&Loss::CrossEntropy, &d, &[f32::NEG_INFINITY, f32::NAN]).unwrap();
        assert_eq!((out.value, out.d_logprobs), (0.0, vec![0.0, 0.0]));
    }

    #[test]
    fn an_infinite_loss_is_a_user_error_that_names_position_and_target() {
        let d = datum(2, None);
        let e = evaluate(&Loss::CrossEntropy, &d, &[-1.0, -1.0, -1.0, f32::NEG_INFINITY]).unwrap_err();
        assert!(e.message.contains("position 1, target 1") && e.wire_category() == "user", "{}", e.message);
    }

    #[test]
    fn derivative_matches_differences() {
        check_derivative(&Loss::CrossEntropy, &datum(2, Some(&[0.5, -1.0, 2.0, 0.0])), &[-1.0, -2.0, -3.0, -4.0]);
    }
}
