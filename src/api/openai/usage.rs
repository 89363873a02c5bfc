//! Tokens counted as OpenAI's clients read them.

use serde::Serialize;

use crate::command::SampleOutput;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }

    /// `prompt_tokens` of all prompts, and the tokens that were generated.
    pub fn of(prompt_tokens: usize, outputs: &[SampleOutput]) -> Self {
        let generated = outputs.iter().flat_map(|o| &o.sequences).map(|s| s.tokens.len()).sum();
        Self::new(prompt_tokens, generated)
    }
}
