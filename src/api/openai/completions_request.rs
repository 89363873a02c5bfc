//! The body of a text completion.

use serde::{Deserialize, Deserializer};
use tinderbox_client::types::items::Items;
use tinderbox_client::types::lenient;

use super::sampling::Sampling;
use crate::api::inference::choice::Choice;
use crate::api::inference::settings::Settings;
use crate::error::{Error, Result};

/// Tokens of an answer whose length nobody limited, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: i64 = 16;

#[derive(Clone, Debug, Deserialize)]
pub struct CompletionRequest {
    pub model: String,
    pub prompt: Prompt,
    /// Alternatives of each token; 0 = the token's own logprob alone.
    pub logprobs: Option<i64>,
    /// The prompt stands before the answer, in text and logprobs.
    pub echo: Option<bool>,
    best_of: Option<i64>,
    suffix: Option<Choice>,
    #[serde(flatten)]
    pub sampling: Sampling,
}

/// One prompt or several, as text or token ids.
#[derive(Clone, Debug)]
pub enum Prompt {
    Text(String),
    List(Items),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let expecting = "prompt as a string, a list of strings, a list of token ids or a list of those";
        lenient::text_or_list(d, expecting, Self::Text, Self::List)
    }
}

/// A single prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum One {
    Text(String),
    Ids(Vec<i64>),
}

impl Prompt {
    pub fn each(self) -> Vec<One> {
        match self {
            Self::Text(text) => vec![One::Text(text)],
            Self::List(Items::Ids(ids)) => vec![One::Ids(ids)],
            Self::List(Items::Texts(texts)) => texts.into_iter().map(One::Text).collect(),
            Self::List(Items::Lists(lists)) => lists.into_iter().map(One::Ids).collect(),
        }
    }
}

impl CompletionRequest {
    pub fn echoes(&self) -> bool {
        self.echo.unwrap_or(false)
    }

    /// With `echo` an answer of no tokens scores the prompt alone: then one token is drawn and not told.
    pub fn only_scores(&self) -> bool {
        self.echoes() && self.sampling.max_tokens == Some(0)
    }

    /// # Errors
    /// User errors for fields that contradict each other or that nothing here can honour.
    pub fn settings(&self) -> Result<Settings> {
        if let Some(best_of) = self.best_of.filter(|b| *b != self.sampling.n.unwrap_or(1)) {
            return Err(Error::user(format!("best_of is {best_of}; only the value of n is supported")));
        }
        if self.suffix.as_ref().is_some_and(|s| !s.is_word("")) {
            return Err(Error::user("suffix is not supported"));
        }
        let asked = self.logprobs.is_some() || self.sampling.returns_token_ids();
        if self.echoes() && asked && self.sampling.streams() {
            return Err(Error::user("echo with logprobs or return_token_ids cannot be streamed"));
        }
        let mut settings = self.sampling.settings(("logprobs", self.logprobs.unwrap_or(0)))?;
        settings.max_tokens = settings.max_tokens.or(Some(DEFAULT_MAX_TOKENS));
        if self.only_scores() {
            settings.max_tokens = Some(1);
        }
        settings.prompt_logprobs = self.echoes() && asked;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(body: Value) -> CompletionRequest {
        let mut full = json!({"model": "m", "prompt": "hi"});
        full.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        serde_json::from_value(full).unwrap()
    }

    #[test]
    fn every_form_of_a_prompt() {
        let each = |prompt: Value| of(json!({ "prompt": prompt })).prompt.each();
        assert_eq!(each(json!("a")), [One::Text("a".into())]);
        assert_eq!(each(json!(["a", "b"])), [One::Text("a".into()), One::Text("b".into())]);
        assert_eq!(each(json!([1, 2])), [One::Ids(vec![1, 2])]);
        assert_eq!(each(json!([[1], [2, 3]])), [One::Ids(vec![1]), One::Ids(vec![2, 3])]);
        assert_eq!(each(json!([])), [One::Ids(vec![])]);
        let mixed = serde_json::from_value::<CompletionRequest>(json!({"model": "m", "prompt": ["a", 1]}));
        assert!(mixed.unwrap_err().to_string().contains("not several of these"));
    }

    #[test]
    fn defaults_and_what_cannot_be_honoured() {
        assert_eq!(of(json!({})).settings().unwrap().max_tokens, Some(16));
        let scoring = of(json!({"echo": true, "max_tokens": 0, "logprobs": 2})).settings().unwrap();
        assert_eq!((scoring.max_tokens, scoring.prompt_logprobs, scoring.topk), (Some(1), true, 2));
        for (name, body) in [
            ("best_of is 3", json!({"best_of": 3})),
            ("suffix", json!({"suffix": "x"})),
            ("logprobs is 21", json!({"logprobs": 21})),
            ("echo with logprobs", json!({"echo": true, "logprobs": 1, "stream": true})),
            ("presence_penalty is 0.5", json!({"presence_penalty": 0.5})),
            ("logit_bias", json!({"logit_bias": {"5": 1}})),
            ("response_format \"json_object\"", json!({"response_format": {"type": "json_object"}})),
            ("max_completion_tokens is 2 and max_tokens is 1", json!({"max_tokens": 1, "max_completion_tokens": 2})),
        ] {
            let e = of(body).settings().unwrap_err().message;
            assert!(e.starts_with(name), "{name}: {e}");
        }
    }
}
