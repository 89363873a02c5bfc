//! `POST /v1/chat/completions`.

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
use crate::chat::tool_calls::Call;
use crate::command::{SampleOutput, TokenEvent};
use crate::error::{Error, Result};

use super::chat_request::ChatRequest;
use super::envelope::{Envelope, Kind};
use super::logprobs;
use super::usage::Usage;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    WorkBody(r, permit): WorkBody<ChatRequest>,
) -> ApiResult<Response> {
    let target = app.target(&caller.owner, &r.model).await?;
    let chat = app.chat(&target.model).await?;
    let (settings, streams) = (r.sampling.settings(("top_logprobs", top_logprobs(&r)?))?, r.sampling.streams());
    let telling = {
        let (chat, model) = (chat.clone(), target.model.clone());
        app.heavy(move || Telling::new(r, chat, &model.name, model.max_context_length)).await??
    };
    let request = settings.request(&app, &target, &telling.prompt, Some(&chat))?;
    let n = request.num_samples;
    let jobs = Jobs::start(&app, &caller.owner, &target, vec![request], permit, streams)?;
    if streams {
        return Ok(follow(&app, &caller, jobs, Stream::new(telling, n)).await?);
    }
    let outputs = jobs.outputs().await?;
    Ok(Json(app.heavy(move || telling.whole(&outputs)).await?).into_response())
}

fn top_logprobs(r: &ChatRequest) -> Result<i64> {
    match r.top_logprobs {
        Some(n) if n != 0 && !r.logprobs.unwrap_or(false) => {
            Err(Error::user(format!("top_logprobs is {n}, which needs logprobs=true")))
        }
        n => Ok(n.unwrap_or(0)),
    }
}

const KIND: Kind = Kind { prefix: "chatcmpl", whole: "chat.completion", chunk: "chat.completion.chunk" };

/// What of a request decides how its answer is told.
struct Telling {
    envelope: Envelope,
    chat: Arc<Chat>,
    prompt: Vec<u32>,
    reading: Reading,
    stop: Vec<String>,
    logprobs: bool,
    token_ids: bool,
    /// With `parallel_tool_calls: false` one call at most.
    calls_max: usize,
}

impl Telling {
    fn new(r: ChatRequest, chat: Arc<Chat>, model: &str, context: usize) -> Result<Self> {
        let conversation = r.conversation(model)?;
        let (text, prompt) = chat.prompt(&conversation, context)?;
        let token_ids = r.sampling.returns_token_ids();
        Ok(Self {
            envelope: Envelope::new(&KIND, r.model, r.sampling.includes_usage()),
            reading: chat.reading(&text, &conversation.tools),
            chat,
            prompt,
            stop: r.sampling.stops(),
            logprobs: r.logprobs.unwrap_or(false) || token_ids,
            token_ids,
            calls_max: if r.parallel_tool_calls == Some(false) { 1 } else { usize::MAX },
        })
    }

    fn answer(&self) -> Answer {
        Answer::new(self.chat.clone(), self.stop.clone(), self.reading.clone())
    }

    fn whole(&self, outputs: &[SampleOutput]) -> Value {
        let sequences = outputs.iter().flat_map(|o| &o.sequences);
        let choices = sequences.enumerate().map(|(index, sequence)| {
            let whole = self.answer().whole(sequence);
            let calls: Vec<Value> = whole.calls.iter().take(self.calls_max).map(call_json).collect();
            let content =
                if whole.content.is_empty() && !calls.is_empty() { Value::Null } else { whole.content.into() };
            let mut message = json!({"role": "assistant", "content": content, "refusal": null});
            if !whole.reasoning.is_empty() {
                message["reasoning_content"] = whole.reasoning.into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            let tokens: Vec<Token> = tokens_of(sequence).collect();
            let ending = whole.ending.as_ref().map(finish_reason);
            let mut choice = json!({"index": index, "message": message, "finish_reason": ending});
            self.add_tokens(&mut choice, &tokens);
            self.add_prompt(&mut choice);
            choice
        });
        self.envelope.whole(choices.collect(), Usage::of(self.prompt.len(), outputs))
    }

    /// `logprobs` and, when asked for, the ids of these tokens.
    fn add_tokens(&self, choice: &mut Value, tokens: &[Token]) {
        choice["logprobs"] = match self.logprobs && !tokens.is_empty() {
            true => json!({"content": logprobs::chat(&self.chat.tokenizer, tokens), "refusal": null}),
            false => Value::Null,
        };
        if self.token_ids {
            choice["token_ids"] = tokens.iter().map(|t| t.id).collect();
        }
    }

    /// The prompt's ids, when asked for.
    fn add_prompt(&self, choice: &mut Value) {
        if self.token_ids {
            choice["prompt_token_ids"] = json!(self.prompt);
        }
    }
}

fn finish_reason(ending: &Ending) -> &'static str {
    match ending {
        Ending::Turn | Ending::StopString(_) => "stop",
        Ending::Length => "length",
        Ending::Calls => "tool_calls",
    }
}

fn call_json(call: &Call) -> Value {
    let id = format!("call_{}", &uuid::Uuid::new_v4().simple().to_string()[..24]);
    json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// The chunks of a streamed answer.
struct Stream {
    telling: Telling,
    choices: Vec<Choice>,
    generated: usize,
}

struct Choice {
    answer: Growing,
    /// Tokens whose text is not told yet.
    untold: Vec<Token>,
    calls: usize,
}

impl Stream {
    fn new(telling: Telling, n: usize) -> Self {
        let choice = || Choice { answer: Growing::new(telling.answer()), untold: Vec::new(), calls: 0 };
        let choices = (0..n).map(|_| choice()).collect();
        Self { telling, choices, generated: 0 }
    }

    fn delta(&mut self, index: usize, part: Part) -> Option<Value> {
        match part {
            Part::Content(text) => Some(json!({"content": text})),
            Part::Reasoning(text) => Some(json!({"reasoning_content": text})),
            Part::Call(call) => {
                let at = self.choices[index].calls;
                self.choices[index].calls += 1;
                let mut call = call_json(&call);
                call["index"] = at.into();
                (at < self.telling.calls_max).then(|| json!({"tool_calls": [call]}))
            }
        }
    }

    /// One chunk for each part; the first carries the tokens that led to it.
    fn tell(&mut self, index: usize, deltas: Vec<Value>, ending: Option<&Ending>) -> Vec<Event> {
        let last = deltas.len().saturating_sub(1);
        let mut events = Vec::new();
        for (i, delta) in deltas.into_iter().enumerate() {
            let reason = ending.filter(|_| i == last).map(finish_reason);
            let mut choice = json!({"index": index, "delta": delta, "finish_reason": reason});
            let tokens = std::mem::take(&mut self.choices[index].untold);
            self.telling.add_tokens(&mut choice, &tokens);
            events.push(self.telling.envelope.chunk(vec![choice]));
        }
        events
    }
}

impl Teller for Stream {
    const SHAPE: Shape = Shape::OpenAi;

    fn start(&mut self) -> Vec<Event> {
        let opening = |index| {
            let mut choice =
                json!({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
            self.telling.add_tokens(&mut choice, &[]);
            self.telling.add_prompt(&mut choice);
            self.telling.envelope.chunk(vec![choice])
        };
        (0..self.choices.len()).map(opening).collect()
    }

    fn token(&mut self, _: usize, token: TokenEvent) -> Vec<Event> {
        let index = token.sample;
        let Some((parts, ending)) = self.choices[index].answer.step(&token) else { return Vec::new() };
        self.generated += 1;
        self.choices[index].untold.push(Token::from(&token));
        let mut deltas: Vec<Value> = parts.into_iter().filter_map(|part| self.delta(index, part)).collect();
        if ending.is_some() {
            deltas.push(json!({}));
        }
        self.tell(index, deltas, ending.as_ref())
    }

    fn end(&mut self) -> Vec<Event> {
        self.telling.envelope.end(Usage::new(self.telling.prompt.len(), self.generated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::inference::testing::token;
    use crate::chat::tool_calls::Format;
    use crate::command::{Sequence, StopReason};
    use crate::tokenizer::fixtures::byte_level;

    #[test]
    fn what_comes_behind_the_end_is_not_counted() {
        let request = json!({"model": "m", "messages": [{"role": "assistant", "content": "hello"}]});
        let request: ChatRequest = serde_json::from_value(request).unwrap();
        let chat = Arc::new(Chat::with_template("m", byte_level(), "{{ messages[0].content }}"));
        let id = chat.tokenizer.encode("a", false).unwrap()[0];
        let mut stream = Stream::new(Telling::new(request, chat, "m", 64).unwrap(), 1);
        let told: Vec<_> = [None, Some(StopReason::Stop), None]
            .into_iter()
            .map(|stop_reason| stream.token(0, token(id, stop_reason)).is_empty())
            .collect();
        assert_eq!((told, stream.generated), (vec![false, false, true], 2));
    }

    #[test]
    fn without_parallel_calls_there_is_one() {
        let call = |n: u32| format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"n\": {n}}}}}</tool_call>");
        let calls = |parallel: bool| {
            let request = json!({"model": "m", "parallel_tool_calls": parallel,
                "messages": [{"role": "assistant", "content": "hello"}]});
            let request: ChatRequest = serde_json::from_value(request).unwrap();
            let chat = Arc::new(Chat::with_template("m", byte_level(), "{{ messages[0].content }}"));
            let mut telling = Telling::new(request, chat.clone(), "m", 64).unwrap();
            telling.reading.tools = Some(Format::Marked);
            let tokens = chat.tokenizer.encode(&(call(1) + &call(2)), false).unwrap();
            let logprobs = vec![-1.0; tokens.len()];
            let sequence =
                Sequence { tokens, logprobs, stop_reason: StopReason::Stop, topk: None, weight_versions: Vec::new() };
            telling.whole(&[SampleOutput { sequences: vec![sequence], ..SampleOutput::default() }])
        };
        let both = calls(true);
        let message = &both["choices"][0]["message"];
        assert_eq!(
            (both["choices"][0]["finish_reason"].as_str(), &message["content"]),
            (Some("tool_calls"), &Value::Null)
        );
        assert_eq!(message["tool_calls"][1]["function"], json!({"name": "f", "arguments": "{\"n\": 2}"}));
        let one = calls(false);
        assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
        assert_eq!(one["usage"], both["usage"], "what was generated was generated");
    }
}
