//! A loss that is computed on the client (protocol §14.7): the logprobs of the targets come from a forward pass, their
//! derivatives go back as the weights of a cross-entropy, whose derivative by a logprob is minus its weight.

use crate::error::{Error, Result};
use crate::types::datum::Datum;
use crate::types::tensor_data::TensorData;
use crate::types::training::ForwardBackwardOutput;

/// The datums without what belongs to a loss.
pub(crate) fn forward_data(data: &[Datum]) -> Result<Vec<Datum>> {
    data.iter().map(|datum| with_weights(datum, targets(datum)?, vec![1.0; targets(datum)?.values.len()])).collect()
}

/// One list for each datum.
pub(crate) fn logprobs(output: &ForwardBackwardOutput, datums: usize) -> Result<Vec<Vec<f32>>> {
    let of = |out: &crate::types::datum::LossFnInputs| {
        let logprobs =
            out.get("logprobs").cloned().ok_or_else(|| Error::Decode("an output without logprobs".into()))?;
        Ok(logprobs.values.into_f32())
    };
    let all: Vec<_> = output.loss_fn_outputs.iter().map(of).collect::<Result<_>>()?;
    match all.len() == datums {
        true => Ok(all),
        false => Err(Error::Decode(format!("{} outputs for {datums} datums", all.len()))),
    }
}

pub(crate) fn backward_data(data: Vec<Datum>, logprobs: &[Vec<f32>], slopes: Vec<Vec<f32>>) -> Result<Vec<Datum>> {
    let fits = slopes.len() == logprobs.len() && slopes.iter().zip(logprobs).all(|(s, lp)| s.len() == lp.len());
    if !fits {
        return Err(Error::Usage("the loss must give a derivative for every logprob of every datum".into()));
    }
    let one = |(datum, slopes): (&Datum, Vec<f32>)| {
        with_weights(datum, targets(datum)?, slopes.into_iter().map(|slope| -slope).collect())
    };
    data.iter().zip(slopes).map(one).collect()
}

fn targets(datum: &Datum) -> Result<&TensorData> {
    datum.loss_fn_inputs.get("target_tokens").ok_or_else(|| Error::Usage("a datum has no target_tokens".into()))
}

fn with_weights(datum: &Datum, targets: &TensorData, weights: Vec<f32>) -> Result<Datum> {
    let mut weights = TensorData::from_f32(weights);
    weights.shape.clone_from(&targets.shape);
    let plain = Datum { model_input: datum.model_input.clone(), loss_fn_inputs: Default::default() };
    Ok(plain.with("target_tokens", targets.clone()).with("weights", weights))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_become_weights_of_the_other_sign() {
        let data = vec![Datum::supervised(&[1, 2, 3], [0.5, 0.5]).with("advantages", TensorData::from_f32([9.0]))];
        let forward = forward_data(&data).unwrap();
        assert_eq!(forward, [Datum::supervised(&[1, 2, 3], [1.0, 1.0])]);
        let backward = backward_data(data.clone(), &[vec![-1.0, -2.0]], vec![vec![0.25, -3.0]]).unwrap();
        assert_eq!(backward, [Datum::supervised(&[1, 2, 3], [-0.25, 3.0])]);
        assert!(backward_data(data.clone(), &[vec![-1.0, -2.0]], vec![vec![0.25]]).is_err());
        assert!(backward_data(data, &[vec![-1.0, -2.0]], vec![]).is_err());
        assert!(forward_data(&[Datum::default()]).is_err());
    }
}
