//! Text of tokens as they come: never a part of a character, and nothing that later tokens would change.

use super::Tokenizer;

/// The text so far is what decoding all tokens at once gives, special ones left out.
#[derive(Default)]
pub struct TextStream {
    /// The beginning of a character: at most 3 bytes.
    open: Vec<u8>,
}

impl TextStream {
    /// What `id` completes; bytes that can be no text become U+FFFD.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.is_special(id) {
            return String::new();
        }
        self.open.extend(tokenizer.token_bytes(id));
        let mut text = String::new();
        let mut rest = &self.open[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, bad) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = bad;
                    let Some(wrong) = e.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[wrong..];
                }
            }
        }
        self.open = rest.to_vec();
        text
    }

    /// A character that never ended.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.open).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::fixtures::{byte_fallback, byte_level};

    fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
        let mut stream = TextStream::default();
        let mut all: Vec<String> = ids.iter().map(|id| stream.push(tokenizer, *id)).collect();
        all.push(stream.finish());
        all
    }

    #[test]
    fn characters_come_whole_and_special_tokens_not_at_all() {
        let tokenizer = byte_level();
        let id = |token: &str| tokenizer.token_to_id(token).unwrap();
        let world: Vec<u32> = tokenizer.encode("世", false).unwrap();
        assert_eq!(world.len(), 3);
        let ids = [&[id("hello")], &world[..], &[id("<|end|>")]].concat();
        assert_eq!(pieces(&tokenizer, &ids), ["hello", "", "", "世", "", ""]);
        assert_eq!(pieces(&tokenizer, &[world[0], id("hello"), world[1]]), ["", "\u{fffd}hello", "\u{fffd}", ""]);
        assert_eq!(pieces(&tokenizer, &world[..2]), ["", "", "\u{fffd}"]);
    }

    fn below(state: &mut u64, n: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as usize % n
    }

    #[test]
    fn pieces_join_to_the_decoded_text() {
        let (tokenizer, mut state) = (byte_level(), 5);
        let words = tokenizer.encode("hello there é 世界 😀 <|end|> end", false).unwrap();
        for _ in 0..300 {
            let ids: Vec<u32> = (0..9).map(|_| words[below(&mut state, words.len())]).collect();
            assert_eq!(pieces(&tokenizer, &ids).concat(), tokenizer.decode(&ids, true).unwrap(), "{ids:?}");
        }
    }

    /// With SentencePiece's spelling a decoder takes the first blank away, but a stream continues a text. (It also
    /// spoils every byte of a run that is not text as a whole, which cannot be known while it comes.)
    #[test]
    fn whole_characters_of_pieces_join_to_the_decoded_text() {
        let (tokenizer, mut state) = (byte_fallback(), 5);
        let words = ["hello", " the", "é", "世", "😀", "<|end|>"].map(|t| tokenizer.encode(t, false).unwrap());
        for _ in 0..300 {
            let ids: Vec<u32> = (0..6).flat_map(|_| words[below(&mut state, words.len())].clone()).collect();
            let text = tokenizer.decode(&ids, true).unwrap();
            assert_eq!(pieces(&tokenizer, &ids).concat().trim_start(), text.trim_start(), "{ids:?}");
        }
    }
}
