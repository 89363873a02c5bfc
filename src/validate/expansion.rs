//! Two-dimensional tensors of ids before they are written out: a small request must not become a large one.

use tinderbox_client::types::tensor_data::TensorData;

use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};

/// Cells that a request may have beyond the values it sent, all tensors together.
pub struct Padding {
    left: usize,
    limit: usize,
}

impl Padding {
    pub fn new(limit: usize) -> Self {
        Self { left: limit, limit }
    }

    /// Checks a tensor of ids, (rows,) or (rows, K). Each value sent pays for one cell of padding; what is padded
    /// beyond that comes out of the request's limit. Shapes that are wrong in another way are left to the reader.
    pub fn admit(&mut self, name: &str, tensor: &TensorData, model: &ModelInfo) -> Result<()> {
        let Some(&[rows, k]) = tensor.shape.as_deref() else { return Ok(()) };
        if k > model.vocab_size as i64 {
            return Err(Error::user(format!(
                "{name} has shape [{rows}, {k}]: {k} ids per position, the vocabulary of {} has {}",
                model.name, model.vocab_size
            )));
        }
        let (Ok(rows), Ok(k)) = (usize::try_from(rows), usize::try_from(k)) else { return Ok(()) };
        let sent = tensor.values.len();
        let beyond = rows.saturating_mul(k).saturating_sub(sent.saturating_mul(2));
        self.left = self.left.checked_sub(beyond).ok_or_else(|| {
            Error::user(format!(
                "{name} of shape [{rows}, {k}] holds {sent} values: at most {} elements of a request may be empty beyond \
                 as many as there are values",
                self.limit
            ))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::tokens::tiny_model;

    fn admit(padding: &mut Padding, sent: usize, shape: [i64; 2]) -> Result<()> {
        let tensor = TensorData::from_i64(vec![0; sent]).with_shape(shape);
        padding.admit("target_tokens", &tensor, &tiny_model())
    }

    #[test]
    fn no_more_ids_than_the_vocabulary_has() {
        let e = admit(&mut Padding::new(1 << 30), 0, [2, 11]).unwrap_err().message;
        assert!(e.contains("[2, 11]") && e.contains("has 10"), "{e}");
        assert!(admit(&mut Padding::new(1 << 30), 0, [2, 10]).is_ok());
    }

    #[test]
    fn padding_is_paid_for_by_values_and_then_by_the_limit() {
        let mut padding = Padding::new(50);
        admit(&mut padding, 10, [2, 10]).unwrap();
        admit(&mut padding, 5, [5, 10]).unwrap();
        assert_eq!(padding.left, 10);
        assert!(admit(&mut padding, 0, [2, 10]).unwrap_err().message.contains("at most 50 elements"));
        assert!(admit(&mut padding, 0, [1 << 40, 10]).is_err());
        assert!(admit(&mut padding, 0, [-1, 10]).is_ok(), "the reader says what is wrong");
    }
}
