//! A model's own tokenizer: text to ids and back, and the bytes of each token.

mod byte_level;
pub mod stream;

use std::collections::HashSet;
use std::panic::catch_unwind;
use std::path::Path;

use serde::de::IgnoredAny;
use tokenizers::DecoderWrapper;

use crate::error::{Error, Result};

/// The `tokenizer.json` of a model directory. Cheap to share behind an `Arc`; loading takes a noticeable part of a second
/// for large vocabularies.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    spelling: Spelling,
    special: HashSet<u32>,
}

/// How the vocabulary writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// GPT-2's way, used by Llama 3, SmolLM2 and Qwen: each byte is one character.
    ByteLevel,
    /// SentencePiece's way, used by Llama 2: `▁` for a blank, `<0xE4>` for bytes that no token covers.
    Pieces,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `dir`. Truncation and padding that the file may ask for are switched off.
    ///
    /// # Errors
    /// A server error that names the file.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        let named = |e: &dyn std::fmt::Display| Error::server(format!("{}: {e}", path.display()));
        let json = std::fs::read(&path).map_err(|e| named(&e))?;
        Self::from_json(&json).map_err(|e| named(&e))
    }

    /// `json` is the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// A server error with the parser's words.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let failed = |e: tokenizers::Error| Error::server(format!("not a usable tokenizer: {e}"));
        // A part of a file, and some that are whole, make the library panic.
        serde_json::from_slice::<IgnoredAny>(json).map_err(|e| failed(e.into()))?;
        let read = catch_unwind(|| tokenizers::Tokenizer::from_bytes(json));
        let mut inner = read.unwrap_or_else(|_| Err("it makes the tokenizers library panic".into())).map_err(failed)?;
        inner.with_truncation(None).map_err(failed)?;
        inner.with_padding(None);
        let byte_level = inner.get_decoder().is_some_and(is_byte_level);
        let added = inner.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        Ok(Self { inner, spelling: if byte_level { Spelling::ByteLevel } else { Spelling::Pieces }, special })
    }

    /// Token ids of `text`; special tokens spelled out in it become their ids. `add_special_tokens` adds those that the
    /// model puts around every text, such as a beginning-of-sequence token.
    ///
    /// # Errors
    /// A user error when the text cannot be written in the vocabulary.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        match self.inner.encode_fast(text, add_special_tokens) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(e) => Err(Error::user(format!("the text cannot be tokenized: {e}"))),
        }
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids beyond the vocabulary are passed over.
    ///
    /// # Errors
    /// A server error when the tokenizer's own decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.inner.decode(ids, skip_special_tokens).map_err(|e| Error::server(format!("ids cannot be decoded: {e}")))
    }

    /// What `id` adds to a text that goes before it, in bytes: perhaps a part of a character, nothing for ids beyond the
    /// vocabulary, and the spelled-out form of special tokens.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(token) = self.inner.id_to_token(id) else { return Vec::new() };
        match self.spelling {
            Spelling::ByteLevel => byte_level::bytes_of(&token),
            Spelling::Pieces => match byte_piece(&token) {
                Some(byte) => vec![byte],
                None => self.text_within(id).into_bytes(),
            },
        }
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether `id` is a control token, which no text shows.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// No token stands for more bytes of text than this; at least 1.
    pub fn longest_token_bytes(&self) -> usize {
        self.inner.get_vocab(true).keys().map(String::len).max().unwrap_or(0).max(1)
    }

    /// Number of ids with a token, added ones included; the model's own vocabulary may be larger.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Text of `id` with the blank that decoders take from the start of a text: what a second `id` adds to the first.
    fn text_within(&self, id: u32) -> String {
        let decode = |ids: &[u32]| self.inner.decode(ids, false).unwrap_or_default();
        let (once, twice) = (decode(&[id]), decode(&[id, id]));
        twice.strip_prefix(&once).map_or(once.clone(), str::to_owned)
    }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(parts) => parts.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// The byte that a piece such as `<0xE4>` stands for.
fn byte_piece(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
pub mod fixtures {
    //! Two small tokenizers with all 256 bytes and a few words, one for each spelling of bytes.

    use serde_json::{Value, json};

    use super::{Tokenizer, byte_level::char_of};

    /// A BPE vocabulary and its merges: the 256 `bytes` first, then every token that building `words` needs.
    fn bpe(bytes: Vec<String>, words: &[Vec<String>], byte_fallback: bool) -> Value {
        let mut vocab = bytes;
        let mut merges = Vec::new();
        for word in words {
            for letter in word {
                if !vocab.contains(letter) {
                    vocab.push(letter.clone());
                }
            }
            let mut left = word[0].clone();
            for right in &word[1..] {
                let merged = format!("{left}{right}");
                if !vocab.contains(&merged) {
                    merges.push(json!([left, right]));
                    vocab.push(merged.clone());
                }
                left = merged;
            }
        }
        let ids: serde_json::Map<String, Value> =
            vocab.into_iter().enumerate().map(|(i, token)| (token, json!(i))).collect();
        json!({"type": "BPE", "vocab": ids, "merges": merges, "byte_fallback": byte_fallback})
    }

    fn tokenizer(model: Value, pre_tokenizer: Value, decoder: Value) -> Tokenizer {
        let end = json!({"id": model["vocab"].as_object().unwrap().len(), "content": "<|end|>", "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
        let json = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [end],
            "normalizer": null, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder,
            "model": model});
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    pub fn byte_level() -> Tokenizer {
        let letters = |word: &str| word.bytes().map(|b| char_of(b).to_string()).collect();
        let words = ["hello", " the", " there", "é", "😀"].map(letters);
        let part = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        tokenizer(bpe((0..=255).map(|b| char_of(b).to_string()).collect(), &words, false), part.clone(), part)
    }

    pub fn byte_fallback() -> Tokenizer {
        let letters = |word: &str| word.chars().map(String::from).collect();
        let words = ["hello", "▁the", "o", "r"].map(letters);
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let blanks = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false});
        tokenizer(bpe((0..=255u8).map(|b| format!("<0x{b:02X}>")).collect(), &words, true), blanks, decoder)
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{byte_fallback, byte_level};
    use super::*;

    #[test]
    fn text_survives_a_round_trip() {
        for tokenizer in [byte_level(), byte_fallback()] {
            for text in ["hello there", "é 世界 😀", "a\n\nb"] {
                let ids = tokenizer.encode(text, true).unwrap();
                assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
            }
        }
    }

    #[test]
    fn words_are_merged_and_special_tokens_recognised() {
        let tokenizer = byte_level();
        let end = tokenizer.token_to_id("<|end|>").unwrap();
        assert_eq!(end as usize, tokenizer.vocab_size() - 1);
        let ids = tokenizer.encode("hello<|end|>", false).unwrap();
        assert_eq!(ids, [tokenizer.token_to_id("hello").unwrap(), end]);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "hello");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), "hello<|end|>");
    }

    #[test]
    fn bytes_of_tokens_join_to_the_text() {
        for tokenizer in [byte_level(), byte_fallback()] {
            let text = "hello there é世😀<|end|>";
            let ids = tokenizer.encode(text, false).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), text);
            assert!(tokenizer.token_bytes(u32::MAX).is_empty());
        }
    }

    #[test]
    fn a_piece_keeps_its_leading_blank() {
        let tokenizer = byte_fallback();
        let the = tokenizer.token_to_id("▁the").unwrap();
        assert_eq!(tokenizer.token_bytes(the), b" the");
        assert_eq!(tokenizer.token_bytes(tokenizer.token_to_id("<0xE4>").unwrap()), [0xe4]);
    }

    #[test]
    fn what_the_library_panics_at_is_refused() {
        let refused = |json: &str| Tokenizer::from_json(json.as_bytes()).err().expect("no tokenizer").message;
        // A file that ends in its decoder, and a normalizer whose table is none.
        let e = refused(r#"{"decoder": {"type": "Fuse", "a"#);
        assert!(e.starts_with("not a usable tokenizer: EOF while parsing"), "{e}");
        let model = r#""model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}"#;
        let e = refused(&format!(r#"{{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": 3}}, {model}}}"#));
        assert!(e.ends_with("it makes the tokenizers library panic"), "{e}");
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let e = Tokenizer::load(dir.path()).err().expect("no file");
        assert!(e.message.contains("tokenizer.json"), "{}", e.message);
        std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        let e = Tokenizer::load(dir.path()).err().expect("an empty object");
        assert!(e.message.contains("tokenizer.json") && e.message.contains("not a usable tokenizer"), "{}", e.message);
    }
}
