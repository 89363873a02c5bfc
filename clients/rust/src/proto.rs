//! The protobuf messages of package `tinker_public`, derived by hand from the protocol's table (protocol §9.1, §9.2).
//!
//! Packed arrays inside `bytes` are little-endian; `convert::arrays` reads and writes them.

use std::collections::HashMap;

use prost::bytes::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum StopReason {
    Stop = 0,
    Length = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum DType {
    Unspecified = 0,
    Float32 = 1,
    Int64 = 2,
    Int32 = 3,
    Bfloat16 = 4,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ForwardBackwardRequest {
    #[prost(string, tag = "1")]
    pub model_id: String,
    #[prost(int32, tag = "2")]
    pub seq_id: i32,
    #[prost(message, repeated, tag = "3")]
    pub data: Vec<Datum>,
    #[prost(string, tag = "4")]
    pub loss_fn: String,
    /// Numbers only, for readers before `loss_fn_config_v2`.
    #[prost(map = "string, double", tag = "5")]
    pub loss_fn_config: HashMap<String, f64>,
    #[prost(bool, tag = "6")]
    pub forward_only: bool,
    #[prost(map = "string, message", tag = "7")]
    pub loss_fn_config_v2: HashMap<String, LossConfigValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct LossConfigValue {
    #[prost(oneof = "loss_config_value::Value", tags = "1, 2")]
    pub value: Option<loss_config_value::Value>,
}

pub mod loss_config_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(double, tag = "1")]
        Number(f64),
        #[prost(string, tag = "2")]
        Text(String),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Datum {
    #[prost(message, repeated, tag = "1")]
    pub model_input: Vec<Chunk>,
    #[prost(map = "string, message", tag = "2")]
    pub loss_fn_inputs: HashMap<String, Tensor>,
    #[prost(message, repeated, tag = "3")]
    pub model_input_spans: Vec<ProvenanceSpan>,
    #[prost(message, repeated, tag = "4")]
    pub loss_fn_input_spans: Vec<ProvenanceSpan>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Chunk {
    #[prost(oneof = "chunk::Chunk", tags = "1, 2, 3")]
    pub chunk: Option<chunk::Chunk>,
}

pub mod chunk {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Chunk {
        #[prost(message, tag = "1")]
        EncodedText(super::EncodedTextChunk),
        #[prost(message, tag = "2")]
        Image(super::ImageChunk),
        #[prost(message, tag = "3")]
        Dmel(super::DmelChunk),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncodedTextChunk {
    /// int32 array.
    #[prost(bytes = "bytes", tag = "1")]
    pub tokens: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageChunk {
    /// The raw file.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    #[prost(string, tag = "2")]
    pub format: String,
    #[prost(int32, optional, tag = "3")]
    pub expected_tokens: Option<i32>,
    #[prost(message, optional, tag = "4")]
    pub override_dimensions: Option<ImageDimensions>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ImageDimensions {
    #[prost(uint32, tag = "1")]
    pub width: u32,
    #[prost(uint32, tag = "2")]
    pub height: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DmelChunk {
    #[prost(bytes = "bytes", tag = "1")]
    pub dmel: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ProvenanceSpan {
    #[prost(oneof = "provenance_span::Span", tags = "1, 2")]
    pub span: Option<provenance_span::Span>,
}

pub mod provenance_span {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Span {
        #[prost(message, tag = "1")]
        PromptTokens(super::SpanOfSequence),
        #[prost(message, tag = "2")]
        SampledTokens(super::SpanOfSequence),
    }
}

/// Both arms of a span have the same fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SpanOfSequence {
    #[prost(string, tag = "1")]
    pub sequence_id: String,
    #[prost(int64, tag = "2")]
    pub offset: i64,
    #[prost(int64, tag = "3")]
    pub length: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    #[prost(oneof = "tensor::Encoding", tags = "1, 2")]
    pub encoding: Option<tensor::Encoding>,
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub shape: Vec<i64>,
}

pub mod tensor {
    use prost::bytes::Bytes;

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Encoding {
        #[prost(bytes = "bytes", tag = "1")]
        Dense(Bytes),
        #[prost(message, tag = "2")]
        SparseCsr(super::SparseCsr),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SparseCsr {
    /// In the tensor's dtype.
    #[prost(bytes = "bytes", tag = "1")]
    pub values: Bytes,
    /// int64 array.
    #[prost(bytes = "bytes", tag = "2")]
    pub crow_indices: Bytes,
    /// int64 array.
    #[prost(bytes = "bytes", tag = "3")]
    pub col_indices: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ForwardBackwardOutput {
    #[prost(string, tag = "1")]
    pub loss_fn_output_type: String,
    #[prost(message, repeated, tag = "2")]
    pub loss_fn_outputs: Vec<ArrayRecord>,
    #[prost(map = "string, double", tag = "3")]
    pub metrics: HashMap<String, f64>,
}

/// Several datums whose outputs have the same trailing shapes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ArrayRecord {
    #[prost(string, tag = "1")]
    pub type_tag: String,
    #[prost(map = "string, message", tag = "2")]
    pub fields: HashMap<String, BatchedTensor>,
    #[prost(int64, tag = "3")]
    pub num_datums: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct BatchedTensor {
    /// The datums' arrays one after the other.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    /// int64 array of n + 1 BYTE offsets.
    #[prost(bytes = "bytes", tag = "2")]
    pub offsets: Bytes,
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    /// Shape without the leading dimension.
    #[prost(int64, repeated, tag = "4")]
    pub trailing_shape: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SampleResponse {
    #[prost(message, repeated, tag = "1")]
    pub sequences: Vec<SampledSequence>,
    /// float32 array, NaN where not computed.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub prompt_logprobs: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    #[prost(int32, tag = "4")]
    pub prompt_cache_hit_tokens: i32,
    #[prost(message, optional, tag = "5")]
    pub target_prompt_logprobs: Option<Tensor>,
    #[prost(message, optional, tag = "6")]
    pub prompt_alt_tokens: Option<PromptAltTokens>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SampledSequence {
    #[prost(enumeration = "StopReason", tag = "1")]
    pub stop_reason: i32,
    /// int32 array.
    #[prost(bytes = "bytes", tag = "2")]
    pub tokens: Bytes,
    /// float32 array.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub logprobs: Option<Bytes>,
    #[prost(message, optional, tag = "4")]
    pub topk_sampled_logprobs: Option<TopkLogprobs>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TopkLogprobs {
    /// int32, row-major (length, k).
    #[prost(bytes = "bytes", tag = "1")]
    pub token_ids: Bytes,
    /// float32, row-major (length, k).
    #[prost(bytes = "bytes", tag = "2")]
    pub logprobs: Bytes,
    #[prost(uint32, tag = "3")]
    pub k: u32,
    #[prost(uint32, tag = "4")]
    pub length: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PromptAltTokens {
    #[prost(message, optional, tag = "1")]
    pub tokens: Option<Tensor>,
    #[prost(message, optional, tag = "2")]
    pub logprobs: Option<Tensor>,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn known_bytes() {
        let r = ForwardBackwardRequest { model_id: "m".into(), seq_id: 1, forward_only: true, ..Default::default() };
        assert_eq!(r.encode_to_vec(), [0x0a, 1, b'm', 0x10, 1, 0x30, 1]);
        let t = Tensor {
            encoding: Some(tensor::Encoding::Dense(Bytes::from_static(&[1, 0, 0, 0]))),
            dtype: DType::Float32.into(),
            shape: vec![1],
        };
        assert_eq!(t.encode_to_vec(), [0x0a, 4, 1, 0, 0, 0, 0x18, 1, 0x22, 1, 1]);
    }

    #[test]
    fn rubbish_is_an_error_not_a_panic() {
        for body in [&[0u8; 50][..], &[0xff; 1000], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], br#"{"model_id": "x"}"#] {
            assert!(ForwardBackwardRequest::decode(body).is_err(), "{:?}", &body[..6]);
        }
    }

    #[test]
    fn endless_nesting_of_groups_is_an_error() {
        // Unknown group fields (wire type 3) nest without a length.
        assert!(ForwardBackwardRequest::decode(&[0x7b; 200_000][..]).is_err());
    }
}
