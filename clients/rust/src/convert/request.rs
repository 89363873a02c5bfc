//! Protobuf `ForwardBackwardRequest` ↔ its wire type (protocol §9.3).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::bytes::Bytes;

use super::ConvertError;
use super::arrays::{pack, unpack};
use crate::proto::{self, chunk, loss_config_value};
use crate::types::datum::Datum;
use crate::types::model_input::{Chunk, DmelChunk, EncodedTextChunk, ImageChunk, ModelInput};
use crate::types::tensor_data::TensorData;
use crate::types::training::{ForwardBackwardInput, ForwardBackwardRequest, LossConfigValue, LossFnConfig};

impl TryFrom<&proto::ForwardBackwardRequest> for ForwardBackwardRequest {
    type Error = ConvertError;

    /// Spans are dropped. Errors name datum and field.
    fn try_from(r: &proto::ForwardBackwardRequest) -> Result<Self, ConvertError> {
        let seq_id = u64::try_from(r.seq_id).map_err(|_| ConvertError(format!("seq_id {} is negative", r.seq_id)))?;
        let data = r
            .data
            .iter()
            .enumerate()
            .map(|(i, d)| Datum::try_from(d).map_err(|e| e.at(format_args!("datum {i}"))))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            model_id: r.model_id.clone(),
            seq_id: Some(seq_id),
            forward_backward_input: ForwardBackwardInput {
                data,
                loss_fn: r.loss_fn.clone(),
                loss_fn_config: read_config(r)?,
            },
            forward_only: r.forward_only,
        })
    }
}

impl TryFrom<&ForwardBackwardRequest> for proto::ForwardBackwardRequest {
    type Error = ConvertError;

    /// Errors: a `seq_id` or token id beyond int32, an image pointer, broken base64.
    fn try_from(r: &ForwardBackwardRequest) -> Result<Self, ConvertError> {
        let seq = r.seq_id.unwrap_or(0);
        let input = &r.forward_backward_input;
        let number = |(k, v): (&String, &LossConfigValue)| match v {
            LossConfigValue::Number(x) => Some((k.clone(), *x)),
            LossConfigValue::Text(_) | LossConfigValue::Other(_) => None,
        };
        let value = |v: &LossConfigValue| proto::LossConfigValue {
            value: Some(match v {
                LossConfigValue::Number(x) => loss_config_value::Value::Number(*x),
                LossConfigValue::Text(s) => loss_config_value::Value::Text(s.clone()),
                LossConfigValue::Other(v) => loss_config_value::Value::Text(v.to_string()),
            }),
        };
        Ok(Self {
            model_id: r.model_id.clone(),
            seq_id: i32::try_from(seq).map_err(|_| ConvertError(format!("seq_id {seq} does not fit in 32 bits")))?,
            data: input.data.iter().map(proto::Datum::try_from).collect::<Result<_, _>>()?,
            loss_fn: input.loss_fn.clone(),
            loss_fn_config: input.loss_fn_config.iter().filter_map(number).collect(),
            forward_only: r.forward_only,
            loss_fn_config_v2: input.loss_fn_config.iter().map(|(k, v)| (k.clone(), value(v))).collect(),
        })
    }
}

/// The second map holds everything; clients before it filled only the first.
fn read_config(r: &proto::ForwardBackwardRequest) -> Result<LossFnConfig, ConvertError> {
    if r.loss_fn_config_v2.is_empty() {
        return Ok(r.loss_fn_config.iter().map(|(k, v)| (k.clone(), LossConfigValue::Number(*v))).collect());
    }
    let read = |(k, v): (&String, &proto::LossConfigValue)| match &v.value {
        Some(loss_config_value::Value::Number(x)) => Ok((k.clone(), LossConfigValue::Number(*x))),
        Some(loss_config_value::Value::Text(s)) => Ok((k.clone(), LossConfigValue::Text(s.clone()))),
        None => Err(ConvertError(format!("loss_fn_config_v2 {k:?} has no value"))),
    };
    r.loss_fn_config_v2.iter().map(read).collect()
}

impl TryFrom<&proto::Datum> for Datum {
    type Error = ConvertError;

    fn try_from(d: &proto::Datum) -> Result<Self, ConvertError> {
        let chunks = d
            .model_input
            .iter()
            .enumerate()
            .map(|(i, c)| Chunk::try_from(c).map_err(|e| e.at(format_args!("model_input chunk {i}"))))
            .collect::<Result<_, _>>()?;
        let loss_fn_inputs = d
            .loss_fn_inputs
            .iter()
            .map(|(k, t)| Ok((k.clone(), TensorData::try_from(t).map_err(|e| e.at(k))?)))
            .collect::<Result<_, ConvertError>>()?;
        Ok(Self { model_input: ModelInput { chunks }, loss_fn_inputs })
    }
}

impl TryFrom<&Datum> for proto::Datum {
    type Error = ConvertError;

    fn try_from(d: &Datum) -> Result<Self, ConvertError> {
        Ok(Self {
            model_input: d.model_input.chunks.iter().map(proto::Chunk::try_from).collect::<Result<_, _>>()?,
            loss_fn_inputs: d.loss_fn_inputs.iter().map(|(k, t)| (k.clone(), t.into())).collect(),
            model_input_spans: Vec::new(),
            loss_fn_input_spans: Vec::new(),
        })
    }
}

impl TryFrom<&proto::Chunk> for Chunk {
    type Error = ConvertError;

    fn try_from(c: &proto::Chunk) -> Result<Self, ConvertError> {
        Ok(match c.chunk.as_ref().ok_or_else(|| ConvertError("a chunk of no known type".into()))? {
            chunk::Chunk::EncodedText(t) => {
                let tokens = unpack::<i32>(&t.tokens).map_err(|e| e.at("tokens"))?;
                Self::EncodedText(EncodedTextChunk { tokens: tokens.into_iter().map(i64::from).collect() })
            }
            chunk::Chunk::Image(image) => Self::Image(ImageChunk {
                data: BASE64.encode(&image.data),
                format: image.format.clone(),
                expected_tokens: image.expected_tokens.map(i64::from),
            }),
            chunk::Chunk::Dmel(d) => Self::Dmel(DmelChunk { dmel: BASE64.encode(&d.dmel) }),
        })
    }
}

impl TryFrom<&Chunk> for proto::Chunk {
    type Error = ConvertError;

    fn try_from(c: &Chunk) -> Result<Self, ConvertError> {
        let narrow = |n: i64| i32::try_from(n).map_err(|_| ConvertError(format!("{n} does not fit in 32 bits")));
        let decode = |s: &String| BASE64.decode(s).map(Bytes::from).map_err(|e| ConvertError(format!("base64: {e}")));
        let chunk = match c {
            Chunk::EncodedText(t) => {
                let tokens = t.tokens.iter().map(|&n| narrow(n)).collect::<Result<Vec<_>, _>>()?;
                chunk::Chunk::EncodedText(proto::EncodedTextChunk { tokens: pack(&tokens) })
            }
            Chunk::Image(image) => chunk::Chunk::Image(proto::ImageChunk {
                data: decode(&image.data)?,
                format: image.format.clone(),
                expected_tokens: image.expected_tokens.map(narrow).transpose()?,
                override_dimensions: None,
            }),
            Chunk::Dmel(d) => chunk::Chunk::Dmel(proto::DmelChunk { dmel: decode(&d.dmel)? }),
            Chunk::ImageAssetPointer(_) => {
                return Err(ConvertError("protobuf has no image_asset_pointer chunk".into()));
            }
        };
        Ok(Self { chunk: Some(chunk) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ForwardBackwardRequest {
        let datum = Datum::supervised(&[1, 2, 3], [1.0, 0.5]);
        let config = LossFnConfig::from([
            ("clip_low_threshold".into(), LossConfigValue::Number(0.9)),
            ("loss_id".into(), LossConfigValue::Text("a".into())),
        ]);
        ForwardBackwardRequest {
            model_id: "s:train:0".into(),
            seq_id: Some(7),
            forward_backward_input: ForwardBackwardInput {
                data: vec![datum],
                loss_fn: "ppo".into(),
                loss_fn_config: config,
            },
            forward_only: false,
        }
    }

    #[test]
    fn a_request_survives_a_round_trip() {
        let message = proto::ForwardBackwardRequest::try_from(&request()).unwrap();
        assert_eq!(message.loss_fn_config.len(), 1);
        assert_eq!(ForwardBackwardRequest::try_from(&message).unwrap(), request());
    }

    #[test]
    fn the_old_config_map_is_read_when_it_is_alone() {
        let mut message = proto::ForwardBackwardRequest::try_from(&request()).unwrap();
        message.loss_fn_config_v2.clear();
        let config = ForwardBackwardRequest::try_from(&message).unwrap().forward_backward_input.loss_fn_config;
        assert_eq!(config.keys().collect::<Vec<_>>(), ["clip_low_threshold"]);
    }

    #[test]
    fn errors_say_where() {
        let mut message = proto::ForwardBackwardRequest::try_from(&request()).unwrap();
        message.data[0].model_input.push(proto::Chunk { chunk: None });
        let error = ForwardBackwardRequest::try_from(&message).unwrap_err();
        assert_eq!(error.0, "datum 0: model_input chunk 1: a chunk of no known type");
        message.seq_id = -1;
        assert!(ForwardBackwardRequest::try_from(&message).is_err());
    }
}
