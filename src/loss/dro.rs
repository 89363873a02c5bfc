//! DRO: −Σ ( lp·A − ½·beta·(lp − q)² ), a reward with a quadratic pull towards the sampler (protocol §14.2).

use super::DatumLoss;
use super::policy::{Policy, Term, Token};
use crate::command::Datum;
use crate::error::Result;

/// The derivative is −(A − beta·(lp − q)). The quadratic term does not vanish with A = 0: as published, prompt positions
/// are pulled too unless weight 0 masks them.
pub fn evaluate(datum: &Datum, logprobs: &[f32], beta: f64) -> Result<DatumLoss> {
    let counts = |t: &Token| t.advantage != 0.0 || beta != 0.0;
    Policy::of("dro", datum, logprobs)?.sum_where(counts, |t| {
        let gain = if t.advantage == 0.0 { 0.0 } else { t.logprob * t.advantage };
        let pull = if beta == 0.0 { 0.0 } else { beta * t.log_ratio() };
        let penalty = if beta == 0.0 { 0.0 } else { 0.5 * pull * t.log_ratio() };
        Term { value: penalty - gain, derivative: pull - t.advantage, ratio: t.ratio(), clipped: false }
    })
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{all_close, check_derivative, close, policy_datum};
    use crate::command::Loss;

    const DRO: Loss = Loss::Dro { beta: 0.5 };

    #[test]
    fn literal_case_with_a_position_of_zero_advantage() {
        let out = evaluate(&DRO, &policy_datum(&[-1.0, -2.0, 0.0], &[2.0, -1.0, 0.0]), &[-3.0, -2.0, -4.0]).unwrap();
        // −(−3·2 − ¼·4) − (−2·−1 − 0) + ¼·16
        close(out.value, 7.0 - 2.0 + 4.0);
        all_close(&out.d_logprobs, &[-(2.0 + 1.0), 1.0, -2.0]);
    }

    #[test]
    fn weights_mask_the_quadratic_term() {
        let mut datum = policy_datum(&[0.0, -2.0], &[0.0, 1.0]);
        datum.inputs.weights = Some(vec![0.0, 1.0]);
        let out = evaluate(&DRO, &datum, &[f32::NEG_INFINITY, -2.0]).unwrap();
        assert_eq!((out.value, out.d_logprobs), (2.0, vec![0.0, -1.0]));
    }

    #[test]
    fn an_unmasked_infinite_penalty_is_refused() {
        let e = evaluate(&DRO, &policy_datum(&[0.0], &[0.0]), &[f32::NEG_INFINITY]).unwrap_err();
        assert!(e.message.contains("dro") && e.message.contains("position 0"), "{}", e.message);
    }

    #[test]
    fn derivative_matches_differences() {
        check_derivative(&DRO, &policy_datum(&[-1.0, -2.0, 0.0], &[2.0, -1.0, 0.0]), &[-1.5, -1.0, -3.0]);
    }
}
