//! Protobuf `SampleResponse` ↔ its wire type (protocol §9.6).

use super::ConvertError;
use super::arrays::{pack, unpack};
use crate::proto;
use crate::types::sampling::{PromptAltTokens, SampleResponse, SampledSequence, StopReason, TopkLogprobs, TopkRow};
use crate::types::tensor_data::TensorData;

/// Fills the cells of top-k rows that hold nothing; the token beside it is 0.
const PAD_LOGPROB: f32 = -99999.0;

impl From<&SampleResponse> for proto::SampleResponse {
    fn from(r: &SampleResponse) -> Self {
        let floats = |v: &Vec<Option<f32>>| pack(&v.iter().map(|x| x.unwrap_or(f32::NAN)).collect::<Vec<_>>());
        Self {
            sequences: r.sequences.iter().map(Into::into).collect(),
            prompt_logprobs: r.prompt_logprobs.as_ref().map(floats),
            topk_prompt_logprobs: r.topk_prompt_logprobs.as_ref().map(Into::into),
            prompt_cache_hit_tokens: i32::try_from(r.prompt_cache_hit_tokens).unwrap_or(i32::MAX),
            target_prompt_logprobs: r.target_prompt_logprobs.as_ref().map(Into::into),
            prompt_alt_tokens: r.prompt_alt_tokens.as_ref().map(|a| proto::PromptAltTokens {
                tokens: Some((&a.tokens).into()),
                logprobs: Some((&a.logprobs).into()),
            }),
        }
    }
}

impl TryFrom<&proto::SampleResponse> for SampleResponse {
    type Error = ConvertError;

    fn try_from(r: &proto::SampleResponse) -> Result<Self, ConvertError> {
        let floats = |b: &prost::bytes::Bytes| {
            let values = unpack::<f32>(b).map_err(|e| e.at("prompt_logprobs"))?;
            Ok(values.into_iter().map(|x| (!x.is_nan()).then_some(x)).collect())
        };
        Ok(Self {
            sequences: r.sequences.iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            prompt_logprobs: r.prompt_logprobs.as_ref().map(floats).transpose()?,
            topk_prompt_logprobs: r.topk_prompt_logprobs.as_ref().map(read_topk).transpose()?.flatten(),
            prompt_cache_hit_tokens: r.prompt_cache_hit_tokens.try_into().unwrap_or(0),
            target_prompt_logprobs: r.target_prompt_logprobs.as_ref().map(TensorData::try_from).transpose()?,
            prompt_alt_tokens: r.prompt_alt_tokens.as_ref().map(read_alt_tokens).transpose()?,
        })
    }
}

impl From<&SampledSequence> for proto::SampledSequence {
    fn from(s: &SampledSequence) -> Self {
        let stop_reason = match s.stop_reason {
            StopReason::Stop => proto::StopReason::Stop,
            StopReason::Length => proto::StopReason::Length,
        };
        Self {
            stop_reason: stop_reason.into(),
            // Ids below 2^31 have the same bytes as int32.
            tokens: pack(&s.tokens),
            logprobs: s.logprobs.as_ref().map(|v| pack(v)),
            topk_sampled_logprobs: s.topk_sampled_logprobs.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<&proto::SampledSequence> for SampledSequence {
    type Error = ConvertError;

    fn try_from(s: &proto::SampledSequence) -> Result<Self, ConvertError> {
        let stop_reason = match proto::StopReason::try_from(s.stop_reason) {
            Ok(proto::StopReason::Stop) => StopReason::Stop,
            Ok(proto::StopReason::Length) => StopReason::Length,
            Err(_) => return Err(ConvertError(format!("stop reason {} is unknown", s.stop_reason))),
        };
        // An empty array stands for an absent one.
        let logprobs = s.logprobs.as_ref().filter(|b| !b.is_empty());
        Ok(Self {
            stop_reason,
            tokens: unpack(&s.tokens).map_err(|e| e.at("tokens"))?,
            logprobs: logprobs.map(|b| unpack(b).map_err(|e| e.at("logprobs"))).transpose()?,
            topk_sampled_logprobs: s.topk_sampled_logprobs.as_ref().map(read_topk).transpose()?.flatten(),
            weight_versions: None,
        })
    }
}

impl From<&TopkLogprobs> for proto::TopkLogprobs {
    /// Rows longer than `k` are cut, shorter and missing ones padded.
    fn from(t: &TopkLogprobs) -> Self {
        let k = t.k as usize;
        let mut ids = Vec::with_capacity(t.rows.len() * k);
        let mut logprobs = Vec::with_capacity(t.rows.len() * k);
        for row in &t.rows {
            let pairs = row.iter().flatten().copied().chain(std::iter::repeat((0, PAD_LOGPROB)));
            for (id, logprob) in pairs.take(k) {
                ids.push(id);
                logprobs.push(logprob);
            }
        }
        Self { token_ids: pack(&ids), logprobs: pack(&logprobs), k: t.k, length: t.rows.len() as u32 }
    }
}

/// `None` when there are no cells at all.
fn read_topk(t: &proto::TopkLogprobs) -> Result<Option<TopkLogprobs>, ConvertError> {
    let (k, length) = (t.k as usize, t.length as usize);
    if k == 0 || length == 0 {
        return Ok(None);
    }
    let ids = unpack::<u32>(&t.token_ids).map_err(|e| e.at("token_ids"))?;
    let logprobs = unpack::<f32>(&t.logprobs).map_err(|e| e.at("logprobs"))?;
    if Some(ids.len()) != k.checked_mul(length) || logprobs.len() != ids.len() {
        return Err(ConvertError(format!(
            "top-k: {} ids and {} logprobs for {length} rows of {k}",
            ids.len(),
            logprobs.len()
        )));
    }
    let pairs: Vec<_> = ids.into_iter().zip(logprobs).collect();
    let row = |cells: &[(u32, f32)]| -> TopkRow {
        let used = cells.iter().take_while(|c| c.1 != PAD_LOGPROB).count();
        (used > 0).then(|| cells[..used].to_vec())
    };
    Ok(Some(TopkLogprobs { k: t.k, rows: pairs.chunks_exact(k).map(row).collect() }))
}

fn read_alt_tokens(a: &proto::PromptAltTokens) -> Result<PromptAltTokens, ConvertError> {
    let missing = || ConvertError("prompt_alt_tokens without tokens or logprobs".into());
    Ok(PromptAltTokens {
        tokens: a.tokens.as_ref().ok_or_else(missing)?.try_into()?,
        logprobs: a.logprobs.as_ref().ok_or_else(missing)?.try_into()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_survives_a_round_trip() {
        let topk = TopkLogprobs { k: 2, rows: vec![None, Some(vec![(7, -0.25), (8, -2.0)]), Some(vec![(9, -0.5)])] };
        let sequence = SampledSequence {
            stop_reason: StopReason::Length,
            tokens: vec![3, 4],
            logprobs: Some(vec![-0.5, -1.0]),
            topk_sampled_logprobs: Some(TopkLogprobs {
                k: 1,
                rows: vec![Some(vec![(3, -0.5)]), Some(vec![(4, -1.0)])],
            }),
            weight_versions: None,
        };
        let r = SampleResponse {
            sequences: vec![sequence],
            prompt_logprobs: Some(vec![None, Some(-1.5), Some(-2.5)]),
            topk_prompt_logprobs: Some(topk),
            prompt_cache_hit_tokens: 2,
            target_prompt_logprobs: Some(TensorData::from_f32([-1.0, 0.0]).with_shape([2, 1])),
            prompt_alt_tokens: Some(PromptAltTokens {
                tokens: TensorData::from_i64([1, 2]).with_shape([2, 1]),
                logprobs: TensorData::from_f32([-1.0, -2.0]).with_shape([2, 1]),
            }),
        };
        assert_eq!(SampleResponse::try_from(&proto::SampleResponse::from(&r)).unwrap(), r);
    }

    #[test]
    fn pads_stand_where_nothing_was_computed() {
        let message = proto::TopkLogprobs::from(&TopkLogprobs { k: 2, rows: vec![None, Some(vec![(7, -0.25)])] });
        assert_eq!(unpack::<i32>(&message.token_ids).unwrap(), [0, 0, 7, 0]);
        assert_eq!(unpack::<f32>(&message.logprobs).unwrap(), [-99999.0, -99999.0, -0.25, -99999.0]);
    }

    #[test]
    fn impossible_messages_are_errors() {
        let topk = proto::TopkLogprobs { k: u32::MAX, length: u32::MAX, ..Default::default() };
        assert!(read_topk(&topk).is_err());
        let sequence = proto::SampledSequence { stop_reason: 9, ..Default::default() };
        assert!(SampledSequence::try_from(&sequence).is_err());
        let torn = proto::SampledSequence { tokens: vec![1, 2].into(), ..Default::default() };
        assert!(SampledSequence::try_from(&torn).is_err());
    }
}
