//! The task of both recipes: sums of two one-digit numbers, as text.

use std::path::Path;

use anyhow::Context;
use tokenizers::Tokenizer;

/// What ends an answer.
pub const STOP: &str = "\n";
/// Enough for two digits and the stop in any vocabulary.
pub const MAX_ANSWER_TOKENS: i64 = 4;

/// `a + b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    pub a: u32,
    pub b: u32,
}

impl Problem {
    /// Every sum of two numbers below `digits` (at most 10).
    pub fn all(digits: u32) -> Vec<Self> {
        (0..digits).flat_map(|a| (0..digits).map(move |b| Self { a, b })).collect()
    }

    pub fn question(self) -> String {
        format!("{}+{}=", self.a, self.b)
    }

    /// Ends in the stop.
    pub fn answer(self) -> String {
        format!("{}{STOP}", self.a + self.b)
    }

    /// 1 for the right sum and nothing else, 0 otherwise.
    pub fn reward(self, answer: &str) -> f64 {
        if answer == self.answer() { 1.0 } else { 0.0 }
    }
}

/// Text ↔ token ids, without special tokens.
pub struct Text {
    tokenizer: Tokenizer,
}

impl Text {
    /// From the `tokenizer.json` of a model's directory.
    pub fn open(model_dir: &Path) -> anyhow::Result<Self> {
        let path = model_dir.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&path).map_err(|e| anyhow::anyhow!("{e}"));
        Ok(Self { tokenizer: tokenizer.with_context(|| format!("reading {}", path.display()))? })
    }

    pub fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, false).map_err(|e| anyhow::anyhow!("encoding {text:?}: {e}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, tokens: &[u32]) -> anyhow::Result<String> {
        self.tokenizer.decode(tokens, false).map_err(|e| anyhow::anyhow!("decoding {tokens:?}: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plain_sum_is_rewarded() {
        let p = Problem { a: 9, b: 4 };
        assert_eq!((p.question(), p.answer()), ("9+4=".into(), "13\n".into()));
        assert_eq!(p.reward("13\n"), 1.0);
        for wrong in ["13", "12\n", "13\n\n", " 13\n", "", "131\n"] {
            assert_eq!(p.reward(wrong), 0.0, "{wrong:?}");
        }
    }

    #[test]
    fn every_pair_comes_once() {
        let all = Problem::all(10);
        assert_eq!(all.len(), 100);
        assert_eq!(all[42], Problem { a: 4, b: 2 });
    }
}
