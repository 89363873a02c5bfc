//! From the datums of a forward_backward request to the engine's: lengths, ranges, finiteness (protocol §7.5, §14.1).

use tinderbox_client::types::datum::{Datum as WireDatum, LossFnInputs};
use tinderbox_client::types::tensor_data::{DenseTensor, TensorData};

use crate::command::{Datum, Loss, LossInputs};
use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};

use super::expansion::Padding;
use super::{custom_loss, loss, tokens};

/// Cells of all (T, K) tensors of one request once they are dense: 256 MB of targets and weights.
const MAX_CELLS: usize = 1 << 25;
/// Of these the cells that nothing was sent for: 32 MB of targets and weights.
const MAX_PADDING: usize = 1 << 22;

/// What a request's datums are checked against.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub loss: &'a Loss,
    pub model: &'a ModelInfo,
    pub max_datums: usize,
}

/// Every datum checked, or the first fault with its datum, field, value and limit. `spanned[i]` says whether datum i
/// carries provenance spans; what the spans say is not used.
pub fn data(wire: Vec<WireDatum>, spanned: &[bool], rules: Rules) -> Result<Vec<Datum>> {
    if wire.is_empty() {
        return Err(Error::user("data is empty: at least one datum is needed"));
    }
    if wire.len() > rules.max_datums {
        return Err(Error::user(format!("{} datums in one request; the limit is {}", wire.len(), rules.max_datums)));
    }
    let mut room = Room { cells: MAX_CELLS, padding: Padding::new(MAX_PADDING) };
    let mut checked = Vec::with_capacity(wire.len());
    for (i, d) in wire.into_iter().enumerate() {
        let has_spans = spanned.get(i).copied().unwrap_or(false);
        if matches!(rules.loss, Loss::StableReinforce { .. }) && !has_spans {
            return Err(Error::user(format!(
                "datum {i}: stable_reinforce needs provenance spans (Datum.with_provenance), this datum has none"
            )));
        }
        let d = datum(d, rules, &mut room).map_err(|e| e.context(format_args!("datum {i}")))?;
        checked.push(d);
    }
    Ok(checked)
}

/// What is left for the (T, K) tensors of a request.
struct Room {
    cells: usize,
    padding: Padding,
}

fn datum(wire: WireDatum, rules: Rules, room: &mut Room) -> Result<Datum> {
    let Rules { loss, model, .. } = rules;
    let tokens = tokens::sequence(&wire.model_input, "model_input", model)?;
    if tokens.len() > model.max_context_length {
        return Err(Error::user(format!(
            "model_input has {} tokens; the context length of {} is {}",
            tokens.len(),
            model.name,
            model.max_context_length
        )));
    }
    refuse_overrides(&wire.loss_fn_inputs, loss)?;
    let inputs = Inputs { tensors: &wire.loss_fn_inputs, loss, length: tokens.len() };
    let target = inputs.required("target_tokens")?;
    inputs.check_rows("target_tokens", target)?;
    room.padding.admit("target_tokens", target, model)?;
    let dense = inputs.dense("target_tokens", target, room.cells)?;
    let (k, two_dimensional) = inputs.columns("target_tokens", &dense)?;
    if k != 1 && !matches!(loss, Loss::CrossEntropy | Loss::Custom(_)) {
        return Err(Error::user(format!(
            "target_tokens has shape {:?}: {} takes one target per position, only cross_entropy and custom take more",
            dense.shape,
            loss::name(loss)
        )));
    }
    room.cells -= dense.values.len();
    let ids = dense.values.into_i64().map_err(|e| Error::user(format!("target_tokens: {e}")))?;
    let targets = tokens::ids(&ids, "target_tokens", 0, model)?;
    let inputs = match loss {
        Loss::Custom(program) => {
            custom_loss::check_rank(program, two_dimensional)?;
            let named = custom_loss::inputs(program, &wire.loss_fn_inputs, &mut room.cells)?;
            LossInputs { named, ..LossInputs::default() }
        }
        _ => inputs.floats(k)?,
    };
    Ok(Datum { tokens, targets, k, two_dimensional, inputs })
}

/// Per-token clip limits would change the numbers, so they must not be ignored.
fn refuse_overrides(tensors: &LossFnInputs, loss: &Loss) -> Result<()> {
    let clipped = matches!(loss, Loss::Ppo { .. } | Loss::Cispo { .. } | Loss::Gspo { .. });
    match ["clip_low_threshold", "clip_high_threshold"].iter().find(|k| clipped && tensors.contains_key(**k)) {
        Some(key) => Err(Error::user(format!("{key}: limits per token are not supported; set it in loss_fn_config"))),
        None => Ok(()),
    }
}

struct Inputs<'a> {
    tensors: &'a LossFnInputs,
    loss: &'a Loss,
    /// Tokens of the model input.
    length: usize,
}

impl Inputs<'_> {
    /// All float inputs that the loss reads. `weights` is (T, K), the rest (T,).
    fn floats(&self, k: usize) -> Result<LossInputs> {
        let mut inputs = LossInputs { weights: self.optional("weights", k)?, ..LossInputs::default() };
        if !matches!(self.loss, Loss::CrossEntropy) {
            inputs.logprobs = Some(self.float("logprobs", self.required("logprobs")?, 1)?);
            inputs.advantages = Some(self.float("advantages", self.required("advantages")?, 1)?);
        }
        if matches!(self.loss, Loss::Gspo { .. }) {
            let mask = self.required("sequence_ratio_mask")?;
            inputs.sequence_ratio_mask = Some(self.float("sequence_ratio_mask", mask, 1)?);
        }
        Ok(inputs)
    }

    fn required(&self, name: &str) -> Result<&TensorData> {
        self.tensors.get(name).ok_or_else(|| {
            let present: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
            Error::user(format!(
                "loss_fn_inputs lacks {name:?}, which {} needs (there is: {})",
                loss::name(self.loss),
                present.join(", ")
            ))
        })
    }

    fn optional(&self, name: &str, k: usize) -> Result<Option<Vec<f32>>> {
        self.tensors.get(name).map(|t| self.float(name, t, k)).transpose()
    }

    /// Finite floats, k per position.
    fn float(&self, name: &str, tensor: &TensorData, k: usize) -> Result<Vec<f32>> {
        let dense = self.dense(name, tensor, self.length.saturating_mul(k))?;
        let (columns, _) = self.columns(name, &dense)?;
        if columns != k {
            return Err(Error::user(format!(
                "{name} has shape {:?}: {columns} values per position, there must be {k}",
                dense.shape
            )));
        }
        let values = dense.values.into_f32();
        match values.iter().position(|x| !x.is_finite()) {
            Some(i) => Err(Error::user(format!("{name} is {} at position {}; it must be finite", values[i], i / k))),
            None => Ok(values),
        }
    }

    /// "5 values for 7 tokens" helps more than "too many elements", so this is checked first.
    fn check_rows(&self, name: &str, tensor: &TensorData) -> Result<()> {
        if let Some(rows) = tensor.shape.as_ref().map_or(Some(tensor.values.len() as i64), |s| s.first().copied())
            && rows != self.length as i64
        {
            return Err(self.wrong_length(name, rows));
        }
        Ok(())
    }

    fn dense(&self, name: &str, tensor: &TensorData, limit: usize) -> Result<DenseTensor> {
        self.check_rows(name, tensor)?;
        tensor.to_dense(0, limit).map_err(|e| Error::user(format!("{name}: {e}")))
    }

    /// Values per position, and whether the tensor was (T, K). The first dimension is known to be right.
    fn columns(&self, name: &str, dense: &DenseTensor) -> Result<(usize, bool)> {
        match dense.shape[..] {
            [_] => Ok((1, false)),
            [_, k] if k > 0 => Ok((k, true)),
            _ => Err(Error::user(format!(
                "{name} has shape {:?}; it must be [{n}] or [{n}, K]",
                dense.shape,
                n = self.length
            ))),
        }
    }

    fn wrong_length(&self, name: &str, rows: i64) -> Error {
        Error::user(format!("{name} has length {rows}, model_input has {} tokens; they must be equal", self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinderbox_client::types::model_input::ModelInput;
    use tinderbox_client::types::tensor_data::{CsrIndices, TensorValues};

    const PPO: Loss = Loss::Ppo { clip_low: 0.8, clip_high: 1.2 };

    fn ints(values: &[i64]) -> TensorData {
        TensorData::from_i64(values.iter().copied())
    }

    fn floats(values: &[f32]) -> TensorData {
        TensorData::from_f32(values.iter().copied())
    }

    fn datum_of(tokens: &[i64], tensors: &[(&str, TensorData)]) -> WireDatum {
        let empty = WireDatum { model_input: ModelInput::from_ints(tokens.iter().copied()), ..WireDatum::default() };
        tensors.iter().cloned().fold(empty, |d, (name, t)| d.with(name, t))
    }

    fn check(loss: Loss, d: WireDatum) -> Result<Datum> {
        let model = tokens::tiny_model();
        data(vec![d], &[true], Rules { loss: &loss, model: &model, max_datums: 2 }).map(|mut v| v.remove(0))
    }

    fn refused(loss: Loss, tokens: &[i64], tensors: &[(&str, TensorData)], mentions: &[&str]) {
        let e = check(loss, datum_of(tokens, tensors)).unwrap_err().message;
        assert!(e.starts_with("datum 0: ") && mentions.iter().all(|m| e.contains(m)), "{e}");
    }

    #[test]
    fn a_good_datum() {
        let d = datum_of(
            &[1, 2],
            &[("target_tokens", ints(&[2, 3])), ("weights", floats(&[0.0, 1.5])), ("mask", ints(&[1]))],
        );
        let d = check(Loss::CrossEntropy, d).unwrap();
        assert_eq!((d.tokens, d.targets, d.k, d.two_dimensional), (vec![1, 2], vec![2, 3], 1, false));
        assert_eq!(d.inputs.weights, Some(vec![0.0, 1.5]));
        let d = check(Loss::CrossEntropy, datum_of(&[1], &[("target_tokens", ints(&[2]))])).unwrap();
        assert_eq!(d.inputs.weights, None);
    }

    #[test]
    fn integers_for_floats_and_whole_floats_for_integers_are_converted() {
        let d = datum_of(&[1, 2], &[("target_tokens", floats(&[2.0, 3.0])), ("weights", ints(&[0, 1]))]);
        let d = check(Loss::CrossEntropy, d).unwrap();
        assert_eq!((d.targets, d.inputs.weights), (vec![2, 3], Some(vec![0.0, 1.0])));
        refused(Loss::CrossEntropy, &[1], &[("target_tokens", floats(&[1.5]))], &["target_tokens", "1.5"]);
    }

    #[test]
    fn each_csr_tensor_keeps_its_own_pattern() {
        let csr = |values, crow: &[i64], col: &[i64]| TensorData {
            values,
            shape: Some(vec![2, 2]),
            csr: Some(CsrIndices { crow: crow.to_vec(), col: col.to_vec() }),
        };
        let targets = csr(TensorValues::Int64(vec![5]), &[0, 0, 1], &[1]);
        let weights = csr(TensorValues::Float32(vec![0.5]), &[0, 1, 1], &[0]);
        let d =
            check(Loss::CrossEntropy, datum_of(&[1, 2], &[("target_tokens", targets), ("weights", weights)])).unwrap();
        assert_eq!((d.targets, d.k, d.two_dimensional), (vec![0, 0, 0, 5], 2, true));
        assert_eq!(d.inputs.weights, Some(vec![0.5, 0.0, 0.0, 0.0]));
    }

    #[test]
    fn csr_in_any_order_is_the_dense_tensor_and_a_cell_sent_twice_is_refused() {
        let csr = |col: &[i64]| TensorData {
            values: TensorValues::Int64(vec![5, 6, 7]),
            shape: Some(vec![2, 2]),
            csr: Some(CsrIndices { crow: vec![0, 1, 3], col: col.to_vec() }),
        };
        let check = |t| check(Loss::CrossEntropy, datum_of(&[1, 2], &[("target_tokens", t)])).unwrap();
        assert_eq!(check(csr(&[0, 1, 0])), check(ints(&[5, 0, 7, 6]).with_shape([2, 2])));
        let twice = [("target_tokens", csr(&[0, 1, 1]))];
        refused(Loss::CrossEntropy, &[1, 2], &twice, &["target_tokens: CSR column 1 stands twice in row 1"]);
    }

    #[test]
    fn lengths_and_ids() {
        const CE: Loss = Loss::CrossEntropy;
        let good = ("target_tokens", ints(&[1, 2, 3]));
        refused(CE, &[1, 2, 3], &[("target_tokens", ints(&[1, 2]))], &["target_tokens", "length 2", "3 tokens"]);
        refused(CE, &[1, 2, 3], &[good.clone(), ("weights", floats(&[1.0]))], &["weights", "length 1"]);
        refused(CE, &[1, 2, 3], &[("target_tokens", ints(&[1, 2, 10]))], &["target_tokens", "10", "position 2"]);
        refused(CE, &[1, 2, 3], &[("target_tokens", ints(&[1, 2, -7]))], &["-7"]);
        refused(CE, &[1, 10, 3], std::slice::from_ref(&good), &["model_input", "token id 10 at position 1"]);
        refused(CE, &[], &[("target_tokens", ints(&[]))], &["model_input", "empty"]);
        refused(CE, &[1; 9], &[("target_tokens", ints(&[1; 9]))], &["9 tokens", "context length", "8"]);
        refused(CE, &[1, 2, 3], &[("weights", floats(&[1.0; 3]))], &["target_tokens", "weights"]);
        refused(
            CE,
            &[1, 2, 3],
            &[good.clone(), ("weights", floats(&[1.0, f32::NAN, 1.0]))],
            &["weights is NaN at position 1"],
        );
        refused(CE, &[1, 2, 3], &[good, ("weights", floats(&[1.0, 1.0, f32::INFINITY]))], &["inf at position 2"]);
    }

    #[test]
    fn inputs_of_rl_losses() {
        let base = [
            ("target_tokens", ints(&[1, 2])),
            ("logprobs", floats(&[-1.0, -1.0])),
            ("advantages", floats(&[0.5, 0.5])),
        ];
        let d = check(PPO, datum_of(&[1, 2], &base)).unwrap();
        assert_eq!((d.inputs.logprobs, d.inputs.advantages), (Some(vec![-1.0, -1.0]), Some(vec![0.5, 0.5])));
        refused(PPO, &[1, 2], &base[..2], &["advantages", "ppo"]);
        refused(Loss::Gspo { clip_low: 0.8, clip_high: 1.2 }, &[1, 2], &base, &["sequence_ratio_mask"]);
        let mut two = base.clone();
        two[0].1 = ints(&[1, 2, 3, 4]).with_shape([2, 2]);
        refused(PPO, &[1, 2], &two, &["one target per position"]);
        let with_clip = [base.to_vec(), vec![("clip_low_threshold", floats(&[0.5, 0.5]))]].concat();
        refused(PPO, &[1, 2], &with_clip, &["clip_low_threshold", "loss_fn_config"]);
    }

    #[test]
    fn impossible_shapes_are_refused_without_allocating() {
        let huge = TensorData {
            values: TensorValues::Int64(vec![]),
            shape: Some(vec![2, 1 << 40]),
            csr: Some(CsrIndices { crow: vec![0, 0, 0], col: vec![] }),
        };
        refused(Loss::CrossEntropy, &[1, 2], &[("target_tokens", huge)], &["target_tokens", "vocabulary"]);
        for shape in [vec![5], vec![-2], vec![1 << 40], vec![2, 0], vec![2, 1, 1]] {
            let t = ints(&[1, 2]).with_shape(shape.clone());
            assert!(check(Loss::CrossEntropy, datum_of(&[1, 2], &[("target_tokens", t)])).is_err(), "{shape:?}");
        }
    }

    #[test]
    fn batches() {
        let model = tokens::tiny_model();
        let loss = Loss::StableReinforce { kl_coeff: 0.0 };
        let rules = Rules { loss: &loss, model: &model, max_datums: 2 };
        let d = datum_of(
            &[1],
            &[("target_tokens", ints(&[1])), ("logprobs", floats(&[0.0])), ("advantages", floats(&[1.0]))],
        );
        assert!(data(vec![], &[], rules).unwrap_err().message.contains("empty"));
        assert!(data(vec![d.clone(); 3], &[true; 3], rules).unwrap_err().message.contains("limit is 2"));
        assert!(data(vec![d.clone(); 2], &[true; 2], rules).is_ok());
        let e = data(vec![d.clone(), d], &[true, false], rules).unwrap_err().message;
        assert!(e.contains("datum 1") && e.contains("spans"), "{e}");
    }
}
