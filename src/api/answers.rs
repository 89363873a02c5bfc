//! Finished work in its wire form: protobuf for samples and forward_backward if asked for, else JSON (protocol §9.4).

use std::collections::{BTreeMap, HashMap};

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prost::Message;
use serde_json::{Value, json};
use tinderbox_client::convert::output::batched_f32;
use tinderbox_client::proto;
use tinderbox_client::types::custom_loss::CreateCustomLossResponse;
use tinderbox_client::types::sampling::{
    PromptAltTokens, SampleResponse, SampledSequence, StopReason as WireStop, TopkLogprobs,
};
use tinderbox_client::types::tensor_data::{CsrIndices, TensorData};
use tinderbox_client::types::training::ForwardBackwardOutput;

use crate::command::{DatumOutput, SampleOutput, StopReason, TargetLayout, TopK};
use crate::futures::state::Answer;
use crate::ids::CheckpointKind;

/// No answer has a key `error`: a client would take it for a failure.
pub fn response(answer: &Answer, protobuf: bool) -> Response {
    match answer {
        Answer::ForwardBackward { outputs, metrics } if protobuf => message(output_bytes(outputs, metrics)),
        Answer::ForwardBackward { outputs, metrics } => Json(output_json(outputs, metrics)).into_response(),
        Answer::Sampled { output, targets } => {
            let wire = sample(output, targets.as_ref());
            if protobuf {
                message(proto::SampleResponse::from(&wire).encode_to_vec())
            } else {
                Json(wire).into_response()
            }
        }
        other => Json(small(other)).into_response(),
    }
}

fn message(bytes: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/x-protobuf")], bytes).into_response()
}

fn small(answer: &Answer) -> Value {
    match answer {
        Answer::Created { model } => json!({ "type": "create_model", "model_id": model.0 }),
        Answer::Loaded { model, path } => {
            json!({ "type": "load_weights", "model_id": model.0, "path": path.to_string() })
        }
        Answer::OptimStep { metrics } => json!({ "metrics": finite(metrics) }),
        Answer::Saved { path, size_bytes } => match path.kind {
            CheckpointKind::Training => json!({ "type": "save_weights", "path": path.to_string() }),
            CheckpointKind::Sampler => json!({ "type": "save_weights_for_sampler", "path": path.to_string() }),
            CheckpointKind::External => {
                json!({ "type": "save_weights_external", "path": path.to_string(), "size_bytes": size_bytes })
            }
        },
        Answer::Snapshot { sampler } => json!({ "type": "save_weights_for_sampler", "sampling_session_id": sampler.0 }),
        Answer::Unloaded { model } => json!({ "type": "unload_model", "model_id": model.0 }),
        Answer::LossKept { loss } => json!(CreateCustomLossResponse { loss_id: loss.0.clone() }),
        Answer::ForwardBackward { .. } | Answer::Sampled { .. } => unreachable!("these have types of their own"),
    }
}

/// JSON has no NaN, and a `null` would fail the client's validation: such a metric is left out.
fn finite(metrics: &[(String, f64)]) -> BTreeMap<String, f64> {
    metrics.iter().filter(|(_, x)| x.is_finite()).cloned().collect()
}

/// A logprob as every client can read it: neither JSON nor what clients make of it has −∞, so the lowest number stands for
/// it. Tokens that can be drawn have one, so there is no NaN.
pub fn told(logprob: f32) -> f32 {
    logprob.max(f32::MIN)
}

/// One record per run of datums with the same trailing shape. Map entries go into the message one by one, in the
/// engine's order: a hash map would put them down in another order each time, and a repeated poll must get equal bytes.
fn output_bytes(outputs: &[DatumOutput], metrics: &[(String, f64)]) -> Vec<u8> {
    let mut bytes = proto::ForwardBackwardOutput {
        loss_fn_output_type: "ArrayRecord".into(),
        loss_fn_outputs: outputs.chunk_by(|a, b| trailing(a) == trailing(b)).map(record).collect(),
        metrics: HashMap::new(),
    }
    .encode_to_vec();
    for (name, value) in metrics {
        let one =
            proto::ForwardBackwardOutput { metrics: HashMap::from([(name.clone(), *value)]), ..Default::default() };
        bytes.extend(one.encode_to_vec());
    }
    bytes
}

/// `outputs` is not empty and uniform.
fn record(outputs: &[DatumOutput]) -> proto::ArrayRecord {
    let flat: Vec<f32> = outputs.iter().flat_map(|o| &o.logprobs).copied().map(told).collect();
    let trailing = outputs.first().map(trailing).unwrap_or_default();
    let logprobs = batched_f32(&flat, outputs.iter().map(|o| o.logprobs.len()), trailing);
    proto::ArrayRecord {
        type_tag: "ArrayRecord".into(),
        fields: HashMap::from([("logprobs".into(), logprobs)]),
        num_datums: outputs.len() as i64,
    }
}

/// The shape without its first dimension.
fn trailing(output: &DatumOutput) -> Vec<i64> {
    if output.two_dimensional { vec![output.k as i64] } else { vec![] }
}

fn output_json(outputs: &[DatumOutput], metrics: &[(String, f64)]) -> ForwardBackwardOutput {
    let logprobs = |o: &DatumOutput| {
        let rows = (o.logprobs.len() / o.k.max(1)) as i64;
        let shape = std::iter::once(rows).chain(trailing(o));
        TensorData::from_f32(o.logprobs.iter().copied().map(told)).with_shape(shape)
    };
    ForwardBackwardOutput {
        loss_fn_output_type: "ArrayRecord".into(),
        loss_fn_outputs: outputs.iter().map(|o| BTreeMap::from([("logprobs".into(), logprobs(o))])).collect(),
        metrics: finite(metrics),
    }
}

fn sample(output: &SampleOutput, targets: Option<&TargetLayout>) -> SampleResponse {
    // What was not computed is NaN.
    let optional = |x: &f32| (!x.is_nan()).then_some(told(*x));
    let scored = output.target_prompt_logprobs.as_ref().zip(targets);
    SampleResponse {
        sequences: output.sequences.iter().map(sequence).collect(),
        prompt_logprobs: output.prompt_logprobs.as_ref().map(|v| v.iter().map(optional).collect()),
        topk_prompt_logprobs: output.topk_prompt_logprobs.as_ref().map(|rows| topk(rows)),
        prompt_cache_hit_tokens: 0,
        target_prompt_logprobs: scored.map(|(values, layout)| target_logprobs(values, layout)),
        prompt_alt_tokens: output.prompt_alt_tokens.as_ref().map(|rows| alt_tokens(rows)),
    }
}

pub fn stop_reason(reason: StopReason) -> WireStop {
    match reason {
        StopReason::Stop => WireStop::Stop,
        StopReason::Length => WireStop::Length,
    }
}

fn sequence(s: &crate::command::Sequence) -> SampledSequence {
    SampledSequence {
        stop_reason: stop_reason(s.stop_reason),
        tokens: s.tokens.clone(),
        logprobs: Some(s.logprobs.iter().copied().map(told).collect()),
        topk_sampled_logprobs: s.topk.as_ref().map(|rows| topk(rows)),
        weight_versions: Some(s.weight_versions.clone()),
    }
}

/// An empty row stands for one that was not computed.
fn topk(rows: &[TopK]) -> TopkLogprobs {
    let row = |r: &TopK| r.iter().map(|&(id, logprob)| (id, told(logprob))).collect();
    TopkLogprobs::from(rows.iter().map(|r| (!r.is_empty()).then(|| row(r))).collect::<Vec<_>>())
}

/// In the layout they were asked for in.
fn target_logprobs(values: &[Vec<f32>], layout: &TargetLayout) -> TensorData {
    let shape = [layout.rows as i64, layout.k as i64];
    let Some(pattern) = &layout.sparse else {
        return TensorData::from_f32(values.iter().flatten().copied().map(told)).with_shape(shape);
    };
    let rows = pattern.crow.windows(2).zip(values);
    let stored =
        rows.flat_map(|(w, row)| pattern.col[w[0] as usize..w[1] as usize].iter().map(|&c| told(row[c as usize])));
    let mut tensor = TensorData::from_f32(stored).with_shape(shape);
    tensor.csr = Some(CsrIndices { crow: pattern.crow.clone(), col: pattern.col.clone() });
    tensor
}

/// Both dense, (prompt length − 1, k).
fn alt_tokens(rows: &[TopK]) -> PromptAltTokens {
    let k = rows.first().map_or(0, Vec::len);
    let shape = [rows.len() as i64, k as i64];
    let cells = || rows.iter().flatten();
    PromptAltTokens {
        tokens: TensorData::from_i64(cells().map(|c| i64::from(c.0))).with_shape(shape),
        logprobs: TensorData::from_f32(cells().map(|c| told(c.1))).with_shape(shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Csr, Sequence};

    fn datum(logprobs: &[f32], k: usize, two_dimensional: bool) -> DatumOutput {
        DatumOutput { logprobs: logprobs.to_vec(), k, two_dimensional }
    }

    #[test]
    fn outputs_of_both_shapes_survive_protobuf() {
        let outputs = [datum(&[-1.0, -2.0], 1, false), datum(&[-3.0, -4.0], 2, true), datum(&[-5.0], 1, true)];
        let metrics = [("loss:sum".to_string(), 1.5), ("tokens:sum".to_string(), 4.0)];
        let bytes = output_bytes(&outputs, &metrics);
        assert_eq!(bytes, output_bytes(&outputs, &metrics));
        let message = proto::ForwardBackwardOutput::decode(&bytes[..]).unwrap();
        assert_eq!(message.metrics.len(), 2);
        let read = ForwardBackwardOutput::try_from(&message).unwrap();
        assert_eq!(read, output_json(&outputs, &metrics));
        assert_eq!(read.loss_fn_outputs[1]["logprobs"].shape, Some(vec![1, 2]));
    }

    #[test]
    fn a_sample_marks_what_was_not_computed() {
        let sequence = Sequence {
            tokens: vec![3],
            logprobs: vec![-0.5],
            stop_reason: StopReason::Stop,
            topk: None,
            weight_versions: vec![9],
        };
        let output = SampleOutput {
            sequences: vec![sequence],
            prompt_logprobs: Some(vec![f32::NAN, -1.0]),
            topk_prompt_logprobs: Some(vec![vec![], vec![(7, -0.1), (8, -2.5)]]),
            ..SampleOutput::default()
        };
        let wire = sample(&output, None);
        assert_eq!(wire.prompt_logprobs, Some(vec![None, Some(-1.0)]));
        let rows = wire.topk_prompt_logprobs.unwrap();
        assert_eq!((rows.k, rows.rows[0].clone()), (2, None));
    }

    /// Everything a sample's answer may say, with −∞ wherever a logprob stands.
    fn impossible() -> (SampleOutput, TargetLayout) {
        let never = f32::NEG_INFINITY;
        let output = SampleOutput {
            sequences: vec![Sequence {
                tokens: vec![3],
                logprobs: vec![never],
                stop_reason: StopReason::Stop,
                topk: Some(vec![vec![(3, -0.5), (4, never)]]),
                weight_versions: vec![0],
            }],
            prompt_logprobs: Some(vec![f32::NAN, never]),
            topk_prompt_logprobs: Some(vec![vec![], vec![(7, never)]]),
            target_prompt_logprobs: Some(vec![vec![never, 0.0]]),
            prompt_alt_tokens: Some(vec![vec![(5, never)]]),
        };
        (output, TargetLayout { rows: 1, k: 2, sparse: None })
    }

    #[test]
    fn no_list_of_logprobs_holds_infinity_or_null_but_where_nothing_was_computed() {
        let (output, layout) = impossible();
        let wire = sample(&output, Some(&layout));
        let json = serde_json::to_value(&wire).unwrap();
        let lowest = json!(f32::MIN);
        assert_eq!(json["prompt_logprobs"], json!([null, lowest]));
        assert_eq!(json["topk_prompt_logprobs"], json!([null, [[7, lowest]]]));
        assert_eq!(json["sequences"][0]["logprobs"], json!([lowest]));
        assert_eq!(json["sequences"][0]["topk_sampled_logprobs"], json!([[[3, -0.5], [4, lowest]]]));
        assert_eq!(json["target_prompt_logprobs"]["data"], json!([lowest, 0.0]));
        assert_eq!(json["prompt_alt_tokens"]["logprobs"]["data"], json!([lowest]));
        let bytes = proto::SampleResponse::from(&wire).encode_to_vec();
        let mut read = SampleResponse::try_from(&proto::SampleResponse::decode(&bytes[..]).unwrap()).unwrap();
        read.sequences[0].weight_versions = Some(vec![0]);
        assert_eq!(read, wire);
        let sparse = TargetLayout { rows: 1, k: 2, sparse: Some(Csr { crow: vec![0, 1], col: vec![0] }) };
        let told = sample(&output, Some(&sparse)).target_prompt_logprobs.unwrap();
        assert_eq!(told.values, TensorData::from_f32([f32::MIN]).values);
    }

    #[test]
    fn trained_logprobs_are_told_alike() {
        let outputs = [datum(&[f32::NEG_INFINITY, -1.0], 1, false)];
        let json = output_json(&outputs, &[]);
        assert_eq!(json.loss_fn_outputs[0]["logprobs"].values, TensorData::from_f32([f32::MIN, -1.0]).values);
        let message = proto::ForwardBackwardOutput::decode(&output_bytes(&outputs, &[])[..]).unwrap();
        assert_eq!(ForwardBackwardOutput::try_from(&message).unwrap(), json);
    }

    #[test]
    fn sparse_targets_are_answered_in_their_pattern() {
        let layout = TargetLayout { rows: 2, k: 2, sparse: Some(Csr { crow: vec![0, 0, 2], col: vec![1, 0] }) };
        let t = target_logprobs(&[vec![0.0, 0.0], vec![-1.0, -2.0]], &layout);
        assert_eq!(t.values, TensorData::from_f32([-2.0, -1.0]).values);
        let layout = TargetLayout { sparse: None, ..layout };
        let t = target_logprobs(&[vec![0.0, 0.0], vec![-1.0, -2.0]], &layout);
        assert_eq!(t, TensorData::from_f32([0.0, 0.0, -1.0, -2.0]).with_shape([2, 2]));
    }

    #[test]
    fn metrics_that_json_cannot_say_are_left_out() {
        let answer = Answer::OptimStep { metrics: vec![("grad_norm".into(), f64::NAN), ("lr".into(), 0.5)] };
        assert_eq!(small(&answer), json!({ "metrics": { "lr": 0.5 } }));
    }
}
