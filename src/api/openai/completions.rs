//! `POST /v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::body::WorkBody;
use crate::api::error::ApiResult;
use crate::api::inference::answer::{Answer, Ending, Growing, Token, tokens_of};
use crate::api::inference::error_shapes::Shape;
use crate::api::inference::jobs::Jobs;
use crate::api::inference::sse::{Teller, follow};
use crate::api::keys::Caller;
use crate::api::state::App;
use crate::chat::Chat;
use crate::chat::output::{Part, Reading};
use crate::command::{SampleOutput, Sequence, StopReason, TokenEvent};
use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};
use crate::validate::tokens;

use super::completions_request::{CompletionRequest, One, Prompt};
use super::envelope::{Envelope, Kind};
use super::logprobs::Lists;
use super::usage::Usage;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    WorkBody(mut r, permit): WorkBody<CompletionRequest>,
) -> ApiResult<Response> {
    let target = app.target(&caller.owner, &r.model).await?;
    let chat = app.chat(&target.model).await?;
    let (settings, streams) = (r.settings()?, r.sampling.streams());
    let given = std::mem::replace(&mut r.prompt, Prompt::Text(String::new()));
    let prompts = {
        let (chat, model) = (chat.clone(), target.model.clone());
        app.heavy(move || prompts(given, &chat, &model)).await??
    };
    let choices = prompts.len().saturating_mul(settings.num_samples.unwrap_or(1).max(1) as usize);
    if choices > app.limits().max_num_samples {
        let limit = app.limits().max_num_samples;
        return Err(Error::user(format!("prompt × n asks for {choices} choices; the limit is {limit}")).into());
    }
    let requests = prompts.iter().map(|p| settings.request(&app, &target, &p.ids, None)).collect::<Result<Vec<_>>>()?;
    let telling = Telling::new(r, chat, prompts, requests[0].num_samples);
    let jobs = Jobs::start(&app, &caller.owner, &target, requests, permit, streams)?;
    if streams {
        return Ok(follow(&app, &caller, jobs, Stream::new(telling)).await?);
    }
    let outputs = jobs.outputs().await?;
    Ok(Json(app.heavy(move || telling.whole(&outputs)).await?).into_response())
}

struct PromptText {
    text: String,
    ids: Vec<u32>,
}

/// At least one prompt, none empty.
fn prompts(given: Prompt, chat: &Chat, model: &ModelInfo) -> Result<Vec<PromptText>> {
    let given = given.each();
    if given.is_empty() {
        return Err(Error::user("prompt is an empty list: at least one prompt is needed"));
    }
    let one = |prompt| -> Result<PromptText> {
        let (text, ids) = match prompt {
            One::Text(text) => {
                let ids = chat.encode(&text, true, model.max_context_length)?;
                (text, ids)
            }
            One::Ids(ids) => {
                let ids = tokens::ids(&ids, "prompt", 0, model)?;
                (chat.tokenizer.decode(&ids, false)?, ids)
            }
        };
        if ids.is_empty() {
            return Err(Error::user("prompt is empty: at least one token is needed"));
        }
        Ok(PromptText { text, ids })
    };
    given.into_iter().map(one).collect()
}

const KIND: Kind = Kind { prefix: "cmpl", whole: "text_completion", chunk: "text_completion" };

/// What of a request decides how its answer is told.
struct Telling {
    envelope: Envelope,
    chat: Arc<Chat>,
    prompts: Vec<PromptText>,
    /// Choices of each prompt.
    n: usize,
    stop: Vec<String>,
    logprobs: bool,
    token_ids: bool,
    echo: bool,
    /// The drawn token is not part of the answer.
    only_scores: bool,
}

impl Telling {
    fn new(r: CompletionRequest, chat: Arc<Chat>, prompts: Vec<PromptText>, n: usize) -> Self {
        let token_ids = r.sampling.returns_token_ids();
        Self {
            chat,
            prompts,
            n,
            stop: r.sampling.stops(),
            logprobs: r.logprobs.is_some() || token_ids,
            token_ids,
            echo: r.echoes(),
            only_scores: r.only_scores(),
            envelope: Envelope::new(&KIND, r.model, r.sampling.includes_usage()),
        }
    }

    fn answer(&self) -> Answer {
        Answer::new(self.chat.clone(), self.stop.clone(), Reading::default())
    }

    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|p| p.ids.len()).sum()
    }

    fn whole(&self, outputs: &[SampleOutput]) -> Value {
        let mut choices = Vec::new();
        for (prompt, output) in self.prompts.iter().zip(outputs) {
            for sequence in &output.sequences {
                choices.push(self.choice(choices.len(), prompt, output, sequence));
            }
        }
        let usage = Usage::of(self.prompt_tokens(), if self.only_scores { &[] } else { outputs });
        self.envelope.whole(choices, usage)
    }

    fn choice(&self, index: usize, prompt: &PromptText, output: &SampleOutput, sequence: &Sequence) -> Value {
        let mut lists = Lists::default();
        let mut text = String::new();
        if self.echo {
            text.push_str(&prompt.text);
            self.score(&mut lists, prompt, output);
        }
        let tokens: Vec<Token> = if self.only_scores { Vec::new() } else { tokens_of(sequence).collect() };
        let (mut answer, mut characters) = (self.answer(), text.chars().count());
        for token in &tokens {
            let top = token.topk.as_deref();
            lists.push(&self.chat.tokenizer, token.id, Some(token.logprob), top, characters);
            let piece = joined(answer.push(token.id));
            characters += piece.chars().count();
            text.push_str(&piece);
        }
        let (rest, ending) = answer.finish(if self.only_scores { StopReason::Length } else { sequence.stop_reason });
        text.push_str(&joined(rest));
        let mut choice = json!({"index": index, "text": text, "finish_reason": finish_reason(&ending)});
        choice["logprobs"] = if self.logprobs { lists.json() } else { Value::Null };
        if self.token_ids {
            choice["token_ids"] = tokens.iter().map(|t| t.id).collect();
            choice["prompt_token_ids"] = json!(prompt.ids);
        }
        choice
    }

    /// The prompt's own tokens, when they were scored.
    fn score(&self, lists: &mut Lists, prompt: &PromptText, output: &SampleOutput) {
        let Some(scores) = &output.prompt_logprobs else { return };
        let mut offset = 0;
        for (i, (&id, &score)) in prompt.ids.iter().zip(scores).enumerate() {
            let top = output.topk_prompt_logprobs.as_ref().and_then(|rows| rows.get(i)).map(Vec::as_slice);
            lists.push(&self.chat.tokenizer, id, (!score.is_nan()).then_some(score), top, offset);
            offset += String::from_utf8_lossy(&self.chat.tokenizer.token_bytes(id)).chars().count();
        }
    }
}

fn finish_reason(ending: &Ending) -> &'static str {
    if *ending == Ending::Length { "length" } else { "stop" }
}

fn joined(parts: Vec<Part>) -> String {
    let text = |part| if let Part::Content(text) = part { text } else { String::new() };
    parts.into_iter().map(text).collect()
}

/// The chunks of a streamed answer.
struct Stream {
    telling: Telling,
    /// Prompt by prompt.
    choices: Vec<Choice>,
    generated: usize,
}

struct Choice {
    answer: Growing,
    /// Tokens whose text is not told yet, and the characters before each.
    untold: Vec<(Token, usize)>,
    characters: usize,
}

impl Stream {
    fn new(telling: Telling) -> Self {
        let choice = |i: usize| {
            let before = if telling.echo { telling.prompts[i / telling.n].text.chars().count() } else { 0 };
            Choice { answer: Growing::new(telling.answer()), untold: Vec::new(), characters: before }
        };
        let choices = (0..telling.prompts.len() * telling.n).map(choice).collect();
        Self { telling, choices, generated: 0 }
    }

    fn tell(&mut self, index: usize, text: &str, ending: Option<&Ending>) -> Event {
        let untold = std::mem::take(&mut self.choices[index].untold);
        let mut choice = json!({"index": index, "text": text, "finish_reason": ending.map(finish_reason)});
        choice["logprobs"] = Value::Null;
        if self.telling.logprobs {
            let mut lists = Lists::default();
            for (token, offset) in &untold {
                let top = token.topk.as_deref();
                lists.push(&self.telling.chat.tokenizer, token.id, Some(token.logprob), top, *offset);
            }
            choice["logprobs"] = lists.json();
        }
        if self.telling.token_ids {
            choice["token_ids"] = untold.iter().map(|(t, _)| t.id).collect();
        }
        self.telling.envelope.chunk(vec![choice])
    }
}

impl Teller for Stream {
    const SHAPE: Shape = Shape::OpenAi;

    fn start(&mut self) -> Vec<Event> {
        if !self.telling.echo && !self.telling.token_ids {
            return Vec::new();
        }
        let opening = |index: usize| {
            let prompt = &self.telling.prompts[index / self.telling.n];
            let text = if self.telling.echo { prompt.text.as_str() } else { "" };
            let mut choice = json!({"index": index, "text": text, "finish_reason": null, "logprobs": null});
            if self.telling.token_ids {
                choice["token_ids"] = json!([]);
                choice["prompt_token_ids"] = json!(prompt.ids);
            }
            self.telling.envelope.chunk(vec![choice])
        };
        (0..self.choices.len()).map(opening).collect()
    }

    fn token(&mut self, prompt: usize, token: TokenEvent) -> Vec<Event> {
        let index = prompt * self.telling.n + token.sample;
        if self.telling.only_scores {
            return token.stop_reason.map(|_| self.tell(index, "", Some(&Ending::Length))).into_iter().collect();
        }
        let choice = &mut self.choices[index];
        let Some((parts, ending)) = choice.answer.step(&token) else { return Vec::new() };
        self.generated += 1;
        choice.untold.push((Token::from(&token), choice.characters));
        let text = joined(parts);
        choice.characters += text.chars().count();
        if text.is_empty() && ending.is_none() {
            return Vec::new();
        }
        vec![self.tell(index, &text, ending.as_ref())]
    }

    fn end(&mut self) -> Vec<Event> {
        self.telling.envelope.end(Usage::new(self.telling.prompt_tokens(), self.generated))
    }
}
