//! How to sample, from the fields that these APIs have in common, checked as a sample of the Tinker API is.

use tinderbox_client::types::model_input::ModelInput;
use tinderbox_client::types::sampling::{SampleRequest as WireRequest, SamplingParams, Stop};

use crate::api::state::App;
use crate::chat::Chat;
use crate::command::SampleRequest;
use crate::error::{Error, Result};
use crate::validate;
use crate::validate::sampling::Names;

use super::target::Target;

/// Tokens of an answer whose length nobody limited. A request holds room for all tokens it may come to need.
pub const DEFAULT_MAX_TOKENS: usize = 4096;

/// The names of the fields that most of these APIs' requests share, for errors.
pub const NAMES: Names = Names {
    num_samples: "n",
    max_tokens: "max_tokens",
    temperature: "temperature",
    top_p: "top_p",
    top_k: "top_k",
    stop: "stop",
    topk_prompt_logprobs: "logprobs",
    topk_sample_logprobs: "top_logprobs",
};

#[derive(Clone, Debug)]
pub struct Settings {
    /// The request's own.
    pub names: Names,
    pub num_samples: Option<i64>,
    pub max_tokens: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub seed: Option<u64>,
    /// End the answer, besides the model's own end of sequence.
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<i64>,
    /// Nothing but `max_tokens` and the stop strings of the answer's text ends it.
    pub ignore_eos: bool,
    /// Best alternatives of each token.
    pub topk: i64,
    /// Score the prompt too, with as many alternatives.
    pub prompt_logprobs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            names: NAMES,
            num_samples: None,
            max_tokens: None,
            temperature: None,
            top_p: None,
            top_k: None,
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            topk: 0,
            prompt_logprobs: false,
        }
    }
}

impl Settings {
    /// The engine's request. `chat` when a turn is to be answered: then the token that ends a turn ends the answer.
    ///
    /// # Errors
    /// User errors that name field, value and limit.
    pub fn request(&self, app: &App, target: &Target, prompt: &[u32], chat: Option<&Chat>) -> Result<SampleRequest> {
        let remaining = target.model.max_context_length.saturating_sub(prompt.len());
        let max_tokens = self.max_tokens.unwrap_or(remaining.clamp(1, DEFAULT_MAX_TOKENS) as i64);
        let params = SamplingParams {
            max_tokens: Some(max_tokens),
            seed: self.seed,
            stop: self.stop(target, chat)?,
            temperature: self.temperature.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(-1),
            top_p: self.top_p.unwrap_or(1.0),
        };
        let mut wire = WireRequest::new("", ModelInput::from_ints(prompt.iter().copied()), params);
        wire.num_samples = self.num_samples.unwrap_or(1);
        wire.topk_sample_logprobs = self.topk;
        wire.prompt_logprobs = self.prompt_logprobs;
        wire.topk_prompt_logprobs = if self.prompt_logprobs { self.topk } else { 0 };
        // 63 bits, as everywhere: a seed may be told and sent again.
        let seed = rand::random::<u64>() >> 1;
        let limit = app.limits().max_num_samples;
        validate::sampling::sample(wire, target.source.clone(), &target.model, limit, seed, &self.names)
            .map(|checked| checked.request)
    }

    fn stop(&self, target: &Target, chat: Option<&Chat>) -> Result<Option<Stop>> {
        // A turn may end in another token than a text, as with base models that carry a chat template.
        let end = chat.and_then(|c| c.end_of_turn.as_ref()).filter(|(id, _)| !target.model.eos_ids.contains(id));
        let (mut texts, mut ids) = (self.stop.clone(), self.stop_token_ids.clone());
        if !texts.is_empty() && !ids.is_empty() {
            return Err(Error::user("stop and stop_token_ids: give one of them"));
        }
        if self.ignore_eos {
            if texts.is_empty() && ids.is_empty() {
                return Ok(Some(Stop::Tokens(Vec::new())));
            }
            return Err(Error::user("ignore_eos goes with neither stop nor stop_token_ids"));
        }
        if !texts.is_empty() {
            texts.extend(end.map(|(_, text)| text.clone()));
            return Ok(Some(Stop::Texts(texts)));
        }
        ids.extend(end.map(|(id, _)| i64::from(*id)));
        Ok((!ids.is_empty()).then_some(Stop::Tokens(ids)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::command;

    async fn check(settings: Settings) -> Result<SampleRequest> {
        let (app, _engine) = testing::app().await;
        let target = app.target(&owner(), "tiny").await.unwrap();
        settings.request(&app, &target, &[1, 2], None)
    }

    #[tokio::test]
    async fn defaults_and_stops() {
        let request = check(Settings::default()).await.unwrap();
        assert_eq!((request.num_samples, request.params.max_tokens, request.params.temperature), (1, 6, 1.0));
        assert_eq!(request.params.stop, command::Stop::Eos);
        let of = async |settings| check(settings).await.map(|r| r.params.stop);
        let stop = vec!["x".to_owned()];
        assert_eq!(
            of(Settings { stop: stop.clone(), ..Settings::default() }).await.unwrap(),
            command::Stop::Strings(stop.clone())
        );
        assert_eq!(
            of(Settings { stop_token_ids: vec![3], ..Settings::default() }).await.unwrap(),
            command::Stop::Tokens(vec![3])
        );
        assert_eq!(of(Settings { ignore_eos: true, ..Settings::default() }).await.unwrap(), command::Stop::Never);
        assert!(of(Settings { ignore_eos: true, stop, ..Settings::default() }).await.is_err());
    }

    #[tokio::test]
    async fn errors_use_the_names_of_the_request() {
        let names = Names { stop: "stop_sequences", ..NAMES };
        let cases = [
            ("temperature is -1;", Settings { temperature: Some(-1.0), ..Settings::default() }),
            ("top_p is 0;", Settings { top_p: Some(0.0), ..Settings::default() }),
            ("n is 0;", Settings { num_samples: Some(0), ..Settings::default() }),
            ("max_tokens is 0;", Settings { max_tokens: Some(0), ..Settings::default() }),
            ("top_logprobs is 99;", Settings { topk: 99, ..Settings::default() }),
            ("stop: token id 10", Settings { stop_token_ids: vec![10], ..Settings::default() }),
            ("stop_sequences holds an empty", Settings { names, stop: vec![String::new()], ..Settings::default() }),
        ];
        for (start, settings) in cases {
            let e = check(settings).await.unwrap_err().message;
            assert!(e.starts_with(start), "{start}: {e}");
        }
    }
}
