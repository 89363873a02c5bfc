//! Protobuf `ForwardBackwardOutput` ↔ its wire type (protocol §9.5).

use std::collections::HashMap;

use super::ConvertError;
use super::arrays::{Packed, pack, unpack};
use super::tensor::{item_size, read_values};
use crate::proto::{self, ArrayRecord, BatchedTensor, DType};
use crate::types::datum::LossFnInputs;
use crate::types::tensor_data::{TensorData, TensorDtype, TensorValues};
use crate::types::training::ForwardBackwardOutput;

impl From<&ForwardBackwardOutput> for proto::ForwardBackwardOutput {
    /// One `ArrayRecord` per run of datums with the same fields, dtypes and trailing shapes. Outputs are dense.
    fn from(o: &ForwardBackwardOutput) -> Self {
        let uniform = o.loss_fn_outputs.chunk_by(|a, b| layout(a).eq(layout(b)));
        Self {
            loss_fn_output_type: o.loss_fn_output_type.clone(),
            loss_fn_outputs: uniform.map(record).collect(),
            metrics: o.metrics.iter().map(|(k, v)| (k.clone(), *v)).collect(),
        }
    }
}

impl TryFrom<&proto::ForwardBackwardOutput> for ForwardBackwardOutput {
    type Error = ConvertError;

    fn try_from(o: &proto::ForwardBackwardOutput) -> Result<Self, ConvertError> {
        let mut outputs = Vec::new();
        for r in &o.loss_fn_outputs {
            outputs.extend(datums(r)?);
        }
        let kind = o.loss_fn_output_type.rsplit(':').next().unwrap_or_default();
        Ok(Self {
            loss_fn_output_type: kind.into(),
            loss_fn_outputs: outputs,
            metrics: o.metrics.iter().map(|(k, v)| (k.clone(), *v)).collect(),
        })
    }
}

/// What must agree between the datums of one record.
fn layout(datum: &LossFnInputs) -> impl Iterator<Item = (&String, TensorDtype, &[i64])> {
    datum.iter().map(|(name, t)| (name, t.dtype(), trailing(t)))
}

fn trailing(t: &TensorData) -> &[i64] {
    t.shape.as_deref().and_then(|s| s.get(1..)).unwrap_or_default()
}

fn record(datums: &[LossFnInputs]) -> ArrayRecord {
    let fields = datums[0].keys().map(|name| (name.clone(), batch(datums.iter().map(|d| &d[name])))).collect();
    ArrayRecord { type_tag: "ArrayRecord".into(), fields, num_datums: datums.len() as i64 }
}

/// `tensors` is not empty and uniform.
fn batch<'a>(tensors: impl Iterator<Item = &'a TensorData> + Clone) -> BatchedTensor {
    let mut data = Vec::new();
    let mut offsets = vec![0i64];
    let mut dtype = DType::Float32;
    let mut trailing_shape = &[][..];
    for t in tensors {
        trailing_shape = trailing(t);
        match &t.values {
            TensorValues::Float32(v) => v.iter().for_each(|x| x.write(&mut data)),
            TensorValues::Int64(v) => {
                dtype = DType::Int64;
                v.iter().for_each(|x| x.write(&mut data));
            }
        }
        offsets.push(data.len() as i64);
    }
    BatchedTensor {
        data: data.into(),
        offsets: pack(&offsets),
        dtype: dtype.into(),
        trailing_shape: trailing_shape.to_vec(),
    }
}

/// The record cut into its datums.
fn datums(r: &ArrayRecord) -> Result<Vec<LossFnInputs>, ConvertError> {
    // Every field has one offset per datum, so their bytes bound the count whatever `num_datums` claims.
    let count = usize::try_from(r.num_datums).unwrap_or(usize::MAX);
    let most = r.fields.values().map(|f| f.offsets.len() / i64::SIZE).max().unwrap_or(1);
    if count >= most.max(1) && count != 0 {
        return Err(ConvertError(format!("{} datums, but offsets for {}", r.num_datums, most.saturating_sub(1))));
    }
    let mut cut: HashMap<&String, std::vec::IntoIter<TensorData>> = HashMap::new();
    for (name, field) in &r.fields {
        cut.insert(name, slices(field, count).map_err(|e| e.at(name))?.into_iter());
    }
    let one = |cut: &mut HashMap<&String, std::vec::IntoIter<TensorData>>| {
        cut.iter_mut().filter_map(|(name, rest)| Some(((*name).clone(), rest.next()?))).collect()
    };
    Ok((0..count).map(|_| one(&mut cut)).collect())
}

fn slices(field: &BatchedTensor, count: usize) -> Result<Vec<TensorData>, ConvertError> {
    let offsets = unpack::<i64>(&field.offsets)?;
    let item = item_size(field.dtype)?;
    if offsets.len() != count + 1 {
        return Err(ConvertError(format!("{} offsets for {count} datums", offsets.len())));
    }
    offsets.windows(2).map(|w| slice(field, item, w[0], w[1])).collect()
}

fn slice(field: &BatchedTensor, item: usize, start: i64, end: i64) -> Result<TensorData, ConvertError> {
    let bytes = usize::try_from(start)
        .ok()
        .zip(usize::try_from(end).ok())
        .and_then(|(start, end)| field.data.get(start..end))
        .ok_or_else(|| ConvertError(format!("offsets {start} to {end} lie outside {} bytes", field.data.len())))?;
    let row = field.trailing_shape.iter().try_fold(1i64, |n, &d| n.checked_mul(d)).filter(|&n| n >= 0);
    let row = row.ok_or_else(|| ConvertError(format!("trailing shape {:?} is impossible", field.trailing_shape)))?;
    let elements = (bytes.len() / item) as i64;
    let rows = if row == 0 { 0 } else { elements / row };
    if rows * row != elements {
        return Err(ConvertError(format!("{elements} elements do not fill rows of shape {:?}", field.trailing_shape)));
    }
    let shape = std::iter::once(rows).chain(field.trailing_shape.iter().copied());
    Ok(TensorData { values: read_values(bytes, field.dtype)?, shape: None, csr: None }.with_shape(shape))
}

/// The message of a float32 output with byte offsets already at hand, for servers that hold one flat buffer.
pub fn batched_f32(data: &[f32], elements: impl IntoIterator<Item = usize>, trailing_shape: Vec<i64>) -> BatchedTensor {
    let mut end = 0;
    let offsets: Vec<i64> = std::iter::once(0)
        .chain(elements.into_iter().map(|n| {
            end += (n * f32::SIZE) as i64;
            end
        }))
        .collect();
    BatchedTensor { data: pack(data), offsets: pack(&offsets), dtype: DType::Float32.into(), trailing_shape }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logprobs(values: &[f32], shape: &[i64]) -> LossFnInputs {
        LossFnInputs::from([(
            "logprobs".into(),
            TensorData::from_f32(values.iter().copied()).with_shape(shape.to_vec()),
        )])
    }

    fn output(loss_fn_outputs: Vec<LossFnInputs>) -> ForwardBackwardOutput {
        ForwardBackwardOutput {
            loss_fn_output_type: "ArrayRecord".into(),
            loss_fn_outputs,
            metrics: [("loss:sum".into(), 1.5)].into(),
        }
    }

    #[test]
    fn offsets_count_bytes() {
        let message =
            proto::ForwardBackwardOutput::from(&output(vec![logprobs(&[-1.0, -2.0], &[2]), logprobs(&[-3.0], &[1])]));
        let field = &message.loss_fn_outputs[0].fields["logprobs"];
        assert_eq!(unpack::<i64>(&field.offsets).unwrap(), [0, 8, 12]);
        assert!(field.trailing_shape.is_empty());
        assert_eq!(*field, batched_f32(&[-1.0, -2.0, -3.0], [2, 1], vec![]));
    }

    #[test]
    fn different_trailing_shapes_are_different_records() {
        let o = output(vec![logprobs(&[-1.0, -2.0], &[1, 2]), logprobs(&[-3.0], &[1]), logprobs(&[], &[0])]);
        let message = proto::ForwardBackwardOutput::from(&o);
        assert_eq!(message.loss_fn_outputs.iter().map(|r| r.num_datums).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(ForwardBackwardOutput::try_from(&message).unwrap(), o);
    }

    #[test]
    fn impossible_records_are_errors() {
        let good = proto::ForwardBackwardOutput::from(&output(vec![logprobs(&[-1.0], &[1])]));
        let broken = |f: fn(&mut ArrayRecord)| {
            let mut message = good.clone();
            f(&mut message.loss_fn_outputs[0]);
            ForwardBackwardOutput::try_from(&message).is_err()
        };
        assert!(broken(|r| r.num_datums = i64::MAX));
        assert!(broken(|r| r.num_datums = -1));
        assert!(broken(|r| r.fields.get_mut("logprobs").unwrap().offsets = pack(&[0i64, 400])));
        assert!(broken(|r| r.fields.get_mut("logprobs").unwrap().offsets = pack(&[4i64, 0])));
        assert!(broken(|r| r.fields.get_mut("logprobs").unwrap().trailing_shape = vec![i64::MAX, 3]));
        assert!(broken(|r| r.fields.get_mut("logprobs").unwrap().data = vec![1].into()));
    }
}
