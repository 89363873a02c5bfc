//! One training example in JSON (protocol §7.5).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::model_input::ModelInput;
use super::tensor_data::TensorData;

/// `target_tokens`, `weights`, `logprobs`, `advantages` … by name.
pub type LossFnInputs = BTreeMap<String, TensorData>;

/// Position t of `model_input` predicts `target_tokens[t]`: the caller has shifted the targets already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Datum {
    pub model_input: ModelInput,
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, super::tensor_data::TensorDataJson>))]
    pub loss_fn_inputs: LossFnInputs,
}

impl Datum {
    /// Next-token prediction over `tokens` (T + 1): inputs are the first T, targets the last T,
    /// `weights` (T) says how much each target counts.
    pub fn supervised(tokens: &[u32], weights: impl IntoIterator<Item = f32>) -> Self {
        let inputs = tokens.split_last().map_or(&[][..], |(_, rest)| rest);
        Self { model_input: ModelInput::from_ints(inputs.iter().copied()), loss_fn_inputs: LossFnInputs::new() }
            .with("target_tokens", TensorData::from_i64(tokens.iter().skip(1).map(|&t| t.into())))
            .with("weights", TensorData::from_f32(weights))
    }

    /// The same datum with one more loss input.
    pub fn with(mut self, name: &str, tensor: TensorData) -> Self {
        self.loss_fn_inputs.insert(name.into(), tensor);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_inputs_shifted_by_one() {
        let d = Datum::supervised(&[5, 6, 7], [0.0, 1.0]);
        assert_eq!(d.model_input.to_ints(), Some(vec![5, 6]));
        assert_eq!(d.loss_fn_inputs["target_tokens"], TensorData::from_i64([6, 7]));
        assert_eq!(d.loss_fn_inputs["weights"], TensorData::from_f32([0.0, 1.0]));
    }
}
