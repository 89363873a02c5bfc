//! The fields of a request that say how to sample, and those that nothing here can honour.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use tinderbox_client::types::lenient;

use crate::api::inference::choice::Choice;
use crate::api::inference::settings::{NAMES, Settings};
use crate::error::{Error, Result};
use crate::validate::sampling::Names;

/// Alternatives of a token that may be asked for.
pub const MAX_TOP_LOGPROBS: i64 = 20;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Sampling {
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub n: Option<i64>,
    #[serde(default, deserialize_with = "lenient::seed")]
    pub seed: Option<u64>,
    pub stop: Option<Stop>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    /// Ours: token ids that end the answer, besides the model's own.
    pub stop_token_ids: Option<Vec<i64>>,
    /// Ours: the model's own end of sequence does not end the answer.
    pub ignore_eos: Option<bool>,
    /// Ours: prompt and answer also as token ids, with logprobs.
    pub return_token_ids: Option<bool>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    logit_bias: Option<BTreeMap<String, IgnoredAny>>,
    response_format: Option<Choice>,
}

#[derive(Clone, Debug)]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        lenient::text_or_list(d, "stop as a string or a list of strings", Self::One, Self::Many)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct StreamOptions {
    pub include_usage: Option<bool>,
}

impl Sampling {
    /// `topk` alternatives of each token, under the request's name for them.
    ///
    /// # Errors
    /// User errors for fields that contradict each other or that nothing here can honour.
    pub fn settings(&self, (name, topk): (&'static str, i64)) -> Result<Settings> {
        self.refuse()?;
        let max_tokens = match (self.max_completion_tokens, self.max_tokens) {
            (Some(a), Some(b)) if a != b => {
                return Err(Error::user(format!("max_completion_tokens is {a} and max_tokens is {b}; give one")));
            }
            (a, b) => a.or(b),
        };
        if !(0..=MAX_TOP_LOGPROBS).contains(&topk) {
            return Err(Error::user(format!("{name} is {topk}; it must lie between 0 and {MAX_TOP_LOGPROBS}")));
        }
        Ok(Settings {
            names: Names { topk_sample_logprobs: name, ..NAMES },
            num_samples: self.n,
            max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed,
            stop: self.stops(),
            stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            topk,
            prompt_logprobs: false,
        })
    }

    pub fn stops(&self) -> Vec<String> {
        match &self.stop {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text.clone()],
            Some(Stop::Many(texts)) => texts.clone(),
        }
    }

    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub fn returns_token_ids(&self) -> bool {
        self.return_token_ids.unwrap_or(false)
    }

    pub fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|o| o.include_usage).unwrap_or(false)
    }

    fn refuse(&self) -> Result<()> {
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if let Some(value) = value.filter(|v| *v != 0.0) {
                return Err(Error::user(format!("{name} is {value}; only 0 is supported")));
            }
        }
        if self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()) {
            return Err(Error::user("logit_bias is not supported"));
        }
        match self.response_format.as_ref().map(Choice::kind) {
            None | Some("text") => Ok(()),
            Some(kind) => Err(Error::user(format!("response_format {kind:?} is not supported; only \"text\" is"))),
        }
    }
}
