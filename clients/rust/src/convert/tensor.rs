//! Protobuf `Tensor` ↔ `TensorData` (protocol §8.2, §9.2).

use super::ConvertError;
use super::arrays::{pack, unpack, unpack_bf16};
use crate::proto::{DType, SparseCsr, Tensor, tensor};
use crate::types::tensor_data::{CsrIndices, TensorData, TensorValues};

impl TryFrom<&Tensor> for TensorData {
    type Error = ConvertError;

    /// An empty shape means 1-D. Errors: unknown dtype, torn bytes, no encoding with a shape that wants values.
    fn try_from(t: &Tensor) -> Result<Self, ConvertError> {
        let shape = (!t.shape.is_empty()).then(|| t.shape.clone());
        let (bytes, csr) = match &t.encoding {
            // proto3 leaves an unset oneof out entirely: an empty dense tensor.
            None => (&[][..], None),
            Some(tensor::Encoding::Dense(bytes)) => (&bytes[..], None),
            Some(tensor::Encoding::SparseCsr(sparse)) => {
                let crow = unpack(&sparse.crow_indices).map_err(|e| e.at("crow_indices"))?;
                let col = unpack(&sparse.col_indices).map_err(|e| e.at("col_indices"))?;
                (&sparse.values[..], Some(CsrIndices { crow, col }))
            }
        };
        Ok(Self { values: read_values(bytes, t.dtype)?, shape, csr })
    }
}

impl From<&TensorData> for Tensor {
    fn from(t: &TensorData) -> Self {
        let (dtype, values) = match &t.values {
            TensorValues::Int64(v) => (DType::Int64, pack(v)),
            TensorValues::Float32(v) => (DType::Float32, pack(v)),
        };
        let encoding = match &t.csr {
            None => tensor::Encoding::Dense(values),
            Some(csr) => tensor::Encoding::SparseCsr(SparseCsr {
                values,
                crow_indices: pack(&csr.crow),
                col_indices: pack(&csr.col),
            }),
        };
        let shape = t.shape.clone().unwrap_or_else(|| vec![t.values.len() as i64]);
        Self { encoding: Some(encoding), dtype: dtype.into(), shape }
    }
}

/// Values of any dtype, the narrow ones widened to the two that JSON has.
pub fn read_values(bytes: &[u8], dtype: i32) -> Result<TensorValues, ConvertError> {
    Ok(match DType::try_from(dtype) {
        Ok(DType::Float32) => TensorValues::Float32(unpack(bytes)?),
        Ok(DType::Bfloat16) => TensorValues::Float32(unpack_bf16(bytes)?),
        Ok(DType::Int64) => TensorValues::Int64(unpack(bytes)?),
        Ok(DType::Int32) => TensorValues::Int64(unpack::<i32>(bytes)?.into_iter().map(i64::from).collect()),
        Ok(DType::Unspecified) | Err(_) => return Err(ConvertError(format!("dtype {dtype} is unknown"))),
    })
}

/// Bytes per element.
pub fn item_size(dtype: i32) -> Result<usize, ConvertError> {
    match DType::try_from(dtype) {
        Ok(DType::Float32 | DType::Int32) => Ok(4),
        Ok(DType::Int64) => Ok(8),
        Ok(DType::Bfloat16) => Ok(2),
        Ok(DType::Unspecified) | Err(_) => Err(ConvertError(format!("dtype {dtype} is unknown"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_and_sparse_survive_a_round_trip() {
        let dense = TensorData::from_i64([1, -1, 3, 4]).with_shape([2, 2]);
        let sparse = TensorData {
            values: TensorValues::Float32(vec![0.5]),
            shape: Some(vec![2, 3]),
            csr: Some(CsrIndices { crow: vec![0, 0, 1], col: vec![2] }),
        };
        for t in [dense, sparse] {
            assert_eq!(TensorData::try_from(&Tensor::from(&t)).unwrap(), t);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let mut t = Tensor::from(&TensorData::from_f32([1.0]));
        t.dtype = 0;
        assert!(TensorData::try_from(&t).is_err());
        t.dtype = 77;
        assert!(TensorData::try_from(&t).is_err());
        t.dtype = DType::Int64.into();
        assert!(TensorData::try_from(&t).is_err());
    }
}
