//! When a sequence ends: token ids, end-of-sequence ids, and strings in the decoded text.

use std::sync::Arc;

use crate::command::Stop;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// The stop condition of one sequence, fed with each of its tokens.
pub struct StopState {
    ids: Vec<u32>,
    strings: Option<StopStrings>,
}

impl StopState {
    /// `eos_ids` end the sequence too, except with [`Stop::Never`].
    ///
    /// # Errors
    /// A user error for stop strings without a tokenizer.
    pub fn new(stop: &Stop, eos_ids: &[u32], tokenizer: Option<Arc<Tokenizer>>) -> Result<Self> {
        let eos = eos_ids.to_vec();
        let (ids, strings) = match stop {
            Stop::Never => (Vec::new(), None),
            Stop::Eos => (eos, None),
            Stop::Tokens(tokens) => ([&eos[..], tokens].concat(), None),
            Stop::Strings(texts) => {
                let missing = || Error::user("stop: strings need a tokenizer, but this model has none; use token ids");
                (eos, Some(StopStrings::new(texts, tokenizer.ok_or_else(missing)?)))
            }
        };
        Ok(Self { ids, strings })
    }

    /// Whether the sequence ends with `token`, which stays in it (protocol §8.3).
    pub fn push(&mut self, token: u32) -> bool {
        let completes_string = self.strings.as_mut().is_some_and(|s| s.push(token));
        completes_string || self.ids.contains(&token)
    }
}

/// Finds the first token whose addition makes the text contain one of the strings, special tokens not skipped.
///
/// The search is over bytes, so that characters split over tokens need no care: valid UTF-8 found in a byte stream
/// stands there between whole characters, and so stands in the decoded text as well.
struct StopStrings {
    texts: Vec<Vec<u8>>,
    tokenizer: Arc<Tokenizer>,
    /// The last bytes of the text so far: enough that a string which ends in the next token lies within.
    tail: Vec<u8>,
    tail_max: usize,
}

impl StopStrings {
    fn new(texts: &[String], tokenizer: Arc<Tokenizer>) -> Self {
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        let texts = texts.iter().map(|t| t.clone().into_bytes()).collect();
        Self { texts, tokenizer, tail: Vec::new(), tail_max: longest.saturating_sub(1) }
    }

    fn push(&mut self, token: u32) -> bool {
        self.tail.extend(self.tokenizer.token_bytes(token));
        let found = self.texts.iter().any(|t| t.is_empty() || self.tail.windows(t.len()).any(|w| w == t));
        let surplus = self.tail.len().saturating_sub(self.tail_max);
        self.tail.drain(..surplus);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::fixtures::{byte_fallback, byte_level};

    fn strings(texts: &[&str]) -> Stop {
        Stop::Strings(texts.iter().map(|t| (*t).to_owned()).collect())
    }

    fn first_stop(stop: &Stop, tokenizer: &Arc<Tokenizer>, tokens: &[u32]) -> Option<usize> {
        let mut state = StopState::new(stop, &[], Some(tokenizer.clone())).unwrap();
        tokens.iter().position(|&t| state.push(t))
    }

    #[test]
    fn ids_and_eos() {
        let ends = |stop: Stop, token| StopState::new(&stop, &[7, 8], None).unwrap().push(token);
        assert!(ends(Stop::Eos, 7) && ends(Stop::Eos, 8) && !ends(Stop::Eos, 3));
        assert!(!ends(Stop::Never, 7));
        assert!(ends(Stop::Tokens(vec![3]), 3) && ends(Stop::Tokens(vec![3]), 7) && !ends(Stop::Tokens(vec![3]), 4));
    }

    #[test]
    fn strings_keep_eos_and_need_a_tokenizer() {
        let tokenizer = Arc::new(byte_level());
        let mut state = StopState::new(&strings(&["zz"]), &[7], Some(tokenizer)).unwrap();
        assert!(!state.push(6) && state.push(7));
        let e = StopState::new(&strings(&["x"]), &[], None).err().expect("no tokenizer");
        assert!(e.message.contains("stop") && e.wire_category() == "user");
    }

    #[test]
    fn a_string_across_tokens_and_within_one() {
        let tokenizer = Arc::new(byte_level());
        let tokens = tokenizer.encode("hello there", false).unwrap();
        let text_until = |i: usize| tokenizer.decode(&tokens[..=i], false).unwrap();
        for needle in ["lo t", "he", "e", "hello there", "there"] {
            let i = first_stop(&strings(&["absent", needle]), &tokenizer, &tokens).expect(needle);
            assert!(text_until(i).contains(needle) && (i == 0 || !text_until(i - 1).contains(needle)), "{needle}");
        }
        assert_eq!(first_stop(&strings(&["hello  there"]), &tokenizer, &tokens), None);
    }

    #[test]
    fn special_tokens_are_part_of_the_text() {
        let tokenizer = Arc::new(byte_level());
        let end = tokenizer.token_to_id("<|end|>").unwrap();
        assert_eq!(first_stop(&strings(&["d|>"]), &tokenizer, &[end]), Some(0));
    }

    /// Every two-character string of the decoded text, and some that are not in it, against decoding from the start.
    fn check_against_full_decoding(tokenizer: Tokenizer, draw: impl Fn(&mut u64) -> Vec<u32>) {
        let tokenizer = Arc::new(tokenizer);
        let (mut state, mut hits) = (1u64, 0);
        for _ in 0..60 {
            let tokens = draw(&mut state);
            let text = tokenizer.decode(&tokens, false).unwrap();
            let chars: Vec<char> = text.chars().collect();
            for width in [1, 2, 5] {
                for needle in chars.windows(width).map(|w| w.iter().collect::<String>()).chain(["q#é".to_owned()]) {
                    // a replacement character is no text; a leading blank depends on the prompt
                    if needle.contains('\u{fffd}') || needle.starts_with(' ') {
                        continue;
                    }
                    let want =
                        (0..tokens.len()).find(|&i| tokenizer.decode(&tokens[..=i], false).unwrap().contains(&needle));
                    assert_eq!(first_stop(&strings(&[&needle]), &tokenizer, &tokens), want, "{needle:?} in {text:?}");
                    hits += usize::from(want.is_some());
                }
            }
        }
        assert!(hits > 500, "the check is void: {hits} strings were found");
    }

    /// Steps a 64-bit linear congruential generator and returns a number below `n`.
    fn below(state: &mut u64, n: u32) -> u32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 33) as u32) % n
    }

    #[test]
    fn random_tokens_equal_full_decoding() {
        let tokenizer = byte_level();
        // half whole words or characters cut anywhere, half rubbish bytes; ids beyond the vocabulary decode to nothing
        let words: Vec<u32> = tokenizer.encode("hello there é 世界 😀 end", false).unwrap();
        let vocab = tokenizer.vocab_size() as u32 + 3;
        check_against_full_decoding(tokenizer, |s| {
            (0..12)
                .flat_map(|_| {
                    let at = below(s, words.len() as u32) as usize;
                    let cut = (at + 1 + below(s, 5) as usize).min(words.len());
                    if below(s, 3) > 0 { words[at..cut].to_vec() } else { vec![below(s, vocab)] }
                })
                .collect()
        });
    }

    #[test]
    fn random_tokens_equal_full_decoding_with_byte_fallback() {
        let tokenizer = byte_fallback();
        let pieces: Vec<Vec<u32>> =
            ["hello", " the", "é", "世", "😀"].iter().map(|t| tokenizer.encode(t, false).unwrap()).collect();
        check_against_full_decoding(tokenizer, |s| {
            (0..12).flat_map(|_| pieces[below(s, pieces.len() as u32) as usize].clone()).collect()
        });
    }
}
