//! Our protobuf messages against bytes that the SDK's own classes wrote (tests/golden/make_proto.py).

use std::fs;
use std::path::Path;

use prost::Message;
use tinderbox_client::proto::{
    ForwardBackwardOutput, ForwardBackwardRequest, SampleResponse, StopReason, chunk, loss_config_value,
    provenance_span, tensor,
};

#[test]
fn forward_backward_request_reads_and_writes_like_the_sdk() {
    let request: ForwardBackwardRequest = round_trip("forward_backward_request");
    assert_eq!((request.model_id.as_str(), request.seq_id, request.forward_only), ("session:train:1", 7, true));
    assert_eq!(request.loss_fn, "ppo");
    assert_eq!(request.loss_fn_config["clip_low_threshold"], 0.75);
    let config = |key: &str| request.loss_fn_config_v2[key].value.clone();
    assert_eq!(config("clip_high_threshold"), Some(loss_config_value::Value::Number(1.25)));
    assert_eq!(config("loss_id"), Some(loss_config_value::Value::Text("l-1".into())));
    let [dense, sparse] = &request.data[..] else { panic!("two datums") };

    let arms: Vec<_> = dense.model_input.iter().filter_map(|c| c.chunk.as_ref()).collect();
    let [chunk::Chunk::EncodedText(text), chunk::Chunk::Image(image), chunk::Chunk::Dmel(dmel)] = arms[..] else {
        panic!("text, image, dmel: {arms:?}")
    };
    assert_eq!(i32s(&text.tokens), [5, 6, 151643]);
    assert_eq!((image.format.as_str(), image.expected_tokens), ("png", Some(4)));
    assert_eq!(image.override_dimensions.map(|d| (d.width, d.height)), Some((640, 480)));
    assert_eq!(dmel.dmel[..], [1, 2]);

    let weights = &dense.loss_fn_inputs["weights"];
    let Some(tensor::Encoding::Dense(bytes)) = &weights.encoding else { panic!("dense weights") };
    assert_eq!((f32s(bytes), &weights.shape[..]), (vec![0.0, 1.0, -0.5], &[3][..]));
    let Some(provenance_span::Span::SampledTokens(span)) = &dense.model_input_spans[1].span else { panic!("sampled") };
    assert_eq!((span.sequence_id.as_str(), span.offset, span.length), ("seq-a", 3, 1));
    assert_eq!(dense.loss_fn_input_spans.len(), 1);

    let targets = &sparse.loss_fn_inputs["target_tokens"];
    let Some(tensor::Encoding::SparseCsr(csr)) = &targets.encoding else { panic!("CSR targets") };
    assert_eq!(
        (i64s(&csr.values), i64s(&csr.crow_indices), i64s(&csr.col_indices)),
        (vec![11, 12, 13], vec![0, 2, 3], vec![0, 2, 1])
    );
    assert_eq!(targets.shape, [2, 3]);
}

#[test]
fn forward_backward_output_reads_and_writes_like_the_sdk() {
    let output: ForwardBackwardOutput = round_trip("forward_backward_output");
    assert_eq!(output.metrics["loss:sum"], 12.5);
    let [two, one] = &output.loss_fn_outputs[..] else { panic!("two records") };
    assert_eq!((two.num_datums, one.num_datums, two.type_tag.as_str()), (2, 1, "array"));
    let logprobs = &two.fields["logprobs"];
    assert_eq!((f32s(&logprobs.data), i64s(&logprobs.offsets)), (vec![-1.5, -2.5, -3.5], vec![0, 4, 12]));
    assert_eq!(one.fields["elementwise_loss"].trailing_shape, [2]);
}

#[test]
fn sample_response_reads_and_writes_like_the_sdk() {
    let response: SampleResponse = round_trip("sample_response");
    let [long, stopped] = &response.sequences[..] else { panic!("two sequences") };
    assert_eq!((long.stop_reason(), stopped.stop_reason()), (StopReason::Length, StopReason::Stop));
    assert_eq!((i32s(&long.tokens), i32s(&stopped.tokens)), (vec![3], vec![4, 2]));
    let top = long.topk_sampled_logprobs.as_ref().expect("top-k of the first sequence");
    assert_eq!((top.k, top.length, i32s(&top.token_ids)), (2, 1, vec![3, 4]));
    assert!(f32s(response.prompt_logprobs.as_ref().expect("prompt logprobs"))[0].is_nan());
    assert_eq!(response.prompt_cache_hit_tokens, 6);
    assert_eq!(response.topk_prompt_logprobs.map(|t| t.length), Some(2));
    assert_eq!(response.target_prompt_logprobs.map(|t| t.shape), Some(vec![2, 1]));
    let alternatives = response.prompt_alt_tokens.expect("alternatives");
    assert!(alternatives.tokens.is_some() && alternatives.logprobs.is_some());
}

/// Decodes a file and encodes it again. Every field in the file is away from its default, so a field that we do not know, or
/// know under another number or type, changes the bytes. Map entries may change places: the bytes are compared in order of value.
#[track_caller]
fn round_trip<M: Message + Default + PartialEq + std::fmt::Debug>(name: &str) -> M {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/proto/{name}.bin"));
    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let message = M::decode(&bytes[..]).expect("the SDK's bytes");
    let again = message.encode_to_vec();
    let sorted = |mut bytes: Vec<u8>| {
        bytes.sort_unstable();
        bytes
    };
    assert_eq!(again.len(), bytes.len(), "{name}: a field was lost or changed");
    assert_eq!(M::decode(&again[..]).expect("our own bytes"), message);
    assert_eq!(sorted(again), sorted(bytes), "{name}: a field was lost or changed");
    message
}

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
}

fn i64s(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
