//! Token ids of a prompt or a training input.

use tinderbox_client::types::model_input::{Chunk, ModelInput};

use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};

/// The concatenated ids of all text chunks: at least one, each below the vocabulary's size.
/// `what` names the sequence in errors, as in "datum 3: model_input".
pub fn sequence(input: &ModelInput, what: &str, model: &ModelInfo) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for chunk in &input.chunks {
        match chunk {
            Chunk::EncodedText(text) => tokens.extend_from_slice(&ids(&text.tokens, what, tokens.len(), model)?),
            other => {
                return Err(Error::user(format!(
                    "{what} holds a chunk of type {:?}: {} takes text only (encoded_text)",
                    other.kind(),
                    model.name
                )));
            }
        }
    }
    if tokens.is_empty() {
        return Err(Error::user(format!("{what} is empty: at least one token is needed")));
    }
    Ok(tokens)
}

/// Ids checked against the vocabulary; `first` is the position of `ids[0]` in errors.
pub fn ids(ids: &[i64], what: &str, first: usize, model: &ModelInfo) -> Result<Vec<u32>> {
    ids.iter().enumerate().map(|(i, &token)| id(token, what, first + i, model)).collect()
}

/// One id checked against the vocabulary.
pub fn id(id: i64, what: &str, position: usize, model: &ModelInfo) -> Result<u32> {
    match u32::try_from(id) {
        Ok(id) if (id as usize) < model.vocab_size => Ok(id),
        _ => Err(Error::user(format!(
            "{what}: token id {id} at position {position} is outside the vocabulary of {} (0 to {})",
            model.name,
            model.vocab_size - 1
        ))),
    }
}

#[cfg(test)]
pub(super) fn tiny_model() -> ModelInfo {
    ModelInfo {
        name: "tiny".into(),
        dir: "/models/tiny".into(),
        arch: "qwen3".into(),
        vocab_size: 10,
        max_context_length: 8,
        eos_ids: vec![9],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tinderbox_client::types::model_input::{EncodedTextChunk, ImageChunk};

    fn text(tokens: &[i64]) -> Chunk {
        Chunk::EncodedText(EncodedTextChunk { tokens: tokens.to_vec() })
    }

    fn check(chunks: Vec<Chunk>) -> Result<Vec<u32>> {
        sequence(&ModelInput { chunks }, "prompt", &tiny_model())
    }

    #[test]
    fn chunks_are_one_sequence() {
        assert_eq!(check(vec![text(&[1, 2]), text(&[]), text(&[9])]).unwrap(), [1, 2, 9]);
    }

    #[test]
    fn a_wrong_id_is_named_with_its_position_in_the_whole_sequence() {
        for (id, shown) in [(10, "10"), (-1, "-1"), (i64::from(i32::MAX), "2147483647"), (1 << 40, "1099511627776")] {
            let e = check(vec![text(&[1, 2]), text(&[3, id])]).unwrap_err();
            assert_eq!(
                e.message,
                format!("prompt: token id {shown} at position 3 is outside the vocabulary of tiny (0 to 9)")
            );
        }
    }

    #[test]
    fn empty_and_images_are_refused() {
        assert!(check(vec![]).unwrap_err().message.contains("empty"));
        assert!(check(vec![text(&[])]).unwrap_err().message.contains("empty"));
        let image = ImageChunk { data: String::new(), format: "png".into(), expected_tokens: None };
        assert!(check(vec![text(&[1]), Chunk::Image(image)]).unwrap_err().message.contains("\"image\""));
    }
}
