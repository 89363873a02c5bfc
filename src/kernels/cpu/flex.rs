//! Between Burn's tensors on the CPU and the slices that kernels work on.

use std::ops::Deref;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Shape, Tensor, bf16};

use super::simd::Slice;
use crate::kernels::Mat;

/// A matrix's values, row-major; keeps them alive.
pub struct Values(FlexTensor);

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let layout = self.0.layout();
        let first = layout.start_offset();
        &self.0.storage::<f32>()[first..first + layout.num_elements()]
    }
}

fn primitive(x: Mat) -> FlexTensor {
    x.try_into_primitive::<Flex>().expect("a CPU kernel gets CPU tensors")
}

/// Borrowed values: no copy unless the matrix is a transposed or strided view.
pub fn values(x: &Mat) -> Values {
    let t = primitive(x.clone());
    Values(if t.is_contiguous() { t } else { t.to_contiguous() })
}

/// A base weight's values as they are stored; keeps them alive.
pub struct Weights(FlexTensor);

impl Weights {
    pub fn slice(&self) -> Slice<'_> {
        let layout = self.0.layout();
        let part = layout.start_offset()..layout.start_offset() + layout.num_elements();
        if self.0.dtype() == DType::F32 {
            return Slice::F32(&self.0.storage::<f32>()[part]);
        }
        let bits = self.0.storage::<bf16>();
        // SAFETY: both are 16 bits in which every pattern is valid.
        Slice::Bf16(unsafe { std::slice::from_raw_parts(bits[part.clone()].as_ptr().cast(), part.len()) })
    }
}

/// Borrowed values of a weight that may be stored as bf16.
pub fn weights(x: &Mat) -> Weights {
    let t = primitive(x.clone());
    Weights(if t.is_contiguous() { t } else { t.to_contiguous() })
}

/// A new matrix of these values.
pub fn matrix(values: Vec<f32>, shape: [usize; 2]) -> Mat {
    debug_assert_eq!(values.len(), shape[0] * shape[1]);
    let layout = Layout::contiguous(Shape::from(shape.to_vec()));
    Tensor::from_primitive::<Flex>(FlexTensor::new(Bytes::from_elems(values), layout, DType::F32))
}

/// Changes a matrix in place; copies it first only if somebody else holds it too.
pub fn update(x: Mat, f: impl FnOnce(&mut [f32])) -> Mat {
    let t = primitive(x);
    let whole = t.is_contiguous() && t.layout().start_offset() == 0 && t.bytes().len() == t.layout().num_elements() * 4;
    let mut t = if whole { t } else { t.to_contiguous() };
    f(t.storage_mut::<f32>());
    Tensor::from_primitive::<Flex>(t)
}

/// Room for `n` values that the caller overwrites in full.
#[expect(clippy::uninit_vec, reason = "clearing would touch every page twice; f32 has no invalid bit patterns")]
pub fn buffer(n: usize) -> Vec<f32> {
    let mut v = Vec::with_capacity(n);
    // SAFETY: capacity is `n`; each caller writes every value before one is read.
    unsafe { v.set_len(n) };
    v
}
