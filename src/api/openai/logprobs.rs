//! Logprobs in the two forms that OpenAI's clients read.

use serde_json::{Value, json};

use crate::api::inference::answer::{Token, finite};
use crate::tokenizer::Tokenizer;

/// Entries of a chat choice's `logprobs.content`.
pub fn chat(tokenizer: &Tokenizer, tokens: &[Token]) -> Vec<Value> {
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(id);
        json!({"token": String::from_utf8_lossy(&bytes), "logprob": finite(logprob), "bytes": bytes})
    };
    let with_top = |token: &Token| {
        let mut full = entry(token.id, token.logprob);
        full["top_logprobs"] = token.topk.iter().flatten().map(|&(id, logprob)| entry(id, logprob)).collect();
        full
    };
    tokens.iter().map(with_top).collect()
}

/// The parallel lists of a completion's `logprobs`, which grow token by token.
#[derive(Default)]
pub struct Lists {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl Lists {
    /// `logprob` is `None` for a prompt's first token; `offset` counts characters of the choice's text before the token.
    pub fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: u32,
        logprob: Option<f32>,
        top: Option<&[(u32, f32)]>,
        offset: usize,
    ) {
        self.tokens.push(spelled(tokenizer, token));
        self.token_logprobs.push(logprob.map(finite).into());
        let table =
            |top: &[(u32, f32)]| top.iter().map(|&(id, lp)| (spelled(tokenizer, id), finite(lp).into())).collect();
        self.top_logprobs.push(top.filter(|t| !t.is_empty()).map_or(Value::Null, |t| Value::Object(table(t))));
        self.text_offset.push(offset);
    }

    pub fn json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// A token's text; one that is no text by itself by its bytes, so that different tokens stay different.
fn spelled(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8(tokenizer.token_bytes(id)).unwrap_or_else(|e| {
        e.as_bytes().iter().fold(String::from("bytes:"), |text, byte| text + &format!("\\x{byte:02x}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::fixtures::byte_level;

    #[test]
    fn tokens_are_text_bytes_and_numbers() {
        let tokenizer = byte_level();
        let hello = tokenizer.token_to_id("hello").unwrap();
        let part = tokenizer.encode("世", false).unwrap()[0];
        let token = Token { id: hello, logprob: -0.5, topk: Some(vec![(hello, -0.5), (part, f32::NEG_INFINITY)]) };
        assert_eq!(
            chat(&tokenizer, &[token])[0],
            json!({"token": "hello", "logprob": -0.5, "bytes": b"hello", "top_logprobs": [
                {"token": "hello", "logprob": -0.5, "bytes": b"hello"},
                {"token": "\u{fffd}", "logprob": -9999.0, "bytes": [0xe4]},
            ]})
        );
        let mut lists = Lists::default();
        lists.push(&tokenizer, hello, None, None, 0);
        lists.push(&tokenizer, part, Some(-2.0), Some(&[(hello, -1.0)]), 5);
        assert_eq!(
            lists.json(),
            json!({"tokens": ["hello", "bytes:\\xe4"], "token_logprobs": [null, -2.0],
                "top_logprobs": [null, {"hello": -1.0}], "text_offset": [0, 5]})
        );
    }
}
