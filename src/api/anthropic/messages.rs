//! `POST /v1/messages`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::body::WorkBody;
use crate::api::error::ApiResult;
use crate::api::inference::answer::{Answer, Ending, Token, finite, tokens_of};
use crate::api::inference::jobs::Jobs;
use crate::api::inference::settings::{NAMES, Settings};
use crate::api::inference::sse::follow;
use crate::api::keys::Caller;
use crate::api::state::App;
use crate::chat::Chat;
use crate::chat::output::Reading;
use crate::chat::tool_calls::Call;
use crate::command::SampleOutput;
use crate::error::{Error, Result};
use crate::validate::sampling::Names;

use super::request::MessagesRequest;
use super::stream::Stream;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    WorkBody(r, permit): WorkBody<MessagesRequest>,
) -> ApiResult<Response> {
    let target = app.target(&caller.owner, &r.prompt.model).await?;
    let chat = app.chat(&target.model).await?;
    let (settings, streams) = (settings(&r), r.stream.unwrap_or(false));
    let telling = {
        let (chat, model) = (chat.clone(), target.model.clone());
        app.heavy(move || Telling::new(r, chat, &model.name, model.max_context_length)).await??
    };
    let request = settings.request(&app, &target, &telling.prompt, Some(&chat))?;
    let jobs = Jobs::start(&app, &caller.owner, &target, vec![request], permit, streams)?;
    if streams {
        return Ok(follow(&app, &caller, jobs, Stream::new(telling)).await?);
    }
    let outputs = jobs.outputs().await?;
    Ok(Json(app.heavy(move || telling.whole(&outputs)).await??).into_response())
}

fn settings(r: &MessagesRequest) -> Settings {
    Settings {
        names: Names { stop: "stop_sequences", ..NAMES },
        max_tokens: Some(r.max_tokens),
        temperature: r.temperature,
        top_p: r.top_p,
        top_k: r.top_k,
        seed: r.seed,
        stop: r.stop_sequences.clone().unwrap_or_default(),
        ..Settings::default()
    }
}

/// What of a request decides how its answer is told.
pub struct Telling {
    id: String,
    model: String,
    chat: Arc<Chat>,
    pub prompt: Vec<u32>,
    reading: Reading,
    stop: Vec<String>,
    pub token_ids: bool,
}

impl Telling {
    fn new(r: MessagesRequest, chat: Arc<Chat>, model: &str, context: usize) -> Result<Self> {
        let conversation = r.prompt.conversation(model)?;
        let (text, prompt) = chat.prompt(&conversation, context)?;
        Ok(Self {
            id: format!("msg_{}", uuid::Uuid::new_v4().simple()),
            model: r.prompt.model,
            reading: chat.reading(&text, &conversation.tools),
            chat,
            prompt,
            stop: r.stop_sequences.unwrap_or_default(),
            token_ids: r.return_token_ids.unwrap_or(false),
        })
    }

    pub fn answer(&self) -> Answer {
        Answer::new(self.chat.clone(), self.stop.clone(), self.reading.clone())
    }

    /// A message that has not ended, without its blocks.
    pub fn message(&self, output_tokens: usize) -> Value {
        let mut message = json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "stop_reason": null, "stop_sequence": null, "usage": self.usage(output_tokens)});
        if self.token_ids {
            message["prompt_token_ids"] = json!(self.prompt);
        }
        message
    }

    pub fn usage(&self, output_tokens: usize) -> Value {
        json!({"input_tokens": self.prompt.len(), "output_tokens": output_tokens,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0})
    }

    fn whole(&self, outputs: &[SampleOutput]) -> Result<Whole> {
        let sequence = outputs.iter().flat_map(|o| &o.sequences).next();
        let sequence = sequence.ok_or_else(|| Error::server("the engine gave no sample"))?;
        let whole = self.answer().whole(sequence);
        let mut blocks = Vec::new();
        if !whole.reasoning.is_empty() {
            blocks.push(Block { block: thinking(&whole.reasoning), input: None });
        }
        if !whole.content.is_empty() {
            blocks.push(Block { block: json!({"type": "text", "text": whole.content}), input: None });
        }
        blocks.extend(whole.calls.iter().map(Block::call));
        let mut message = self.message(sequence.tokens.len());
        if let Some(ending) = &whole.ending {
            stop(&mut message, ending);
        }
        self.add_tokens(&mut message, &tokens_of(sequence).collect::<Vec<_>>());
        Ok(Whole { message, content: blocks })
    }

    /// The answer's ids and logprobs, when asked for.
    pub fn add_tokens(&self, message: &mut Value, tokens: &[Token]) {
        if self.token_ids {
            message["token_ids"] = tokens.iter().map(|t| t.id).collect();
            message["logprobs"] = tokens.iter().map(|t| finite(t.logprob)).collect();
        }
    }
}

/// A message that has ended.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    message: Value,
    content: Vec<Block>,
}

#[derive(Serialize)]
struct Block {
    #[serde(flatten)]
    block: Value,
    /// In the order in which the model wrote it: sent back, it makes the same prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<minijinja::Value>,
}

impl Block {
    /// A call's arguments are an object by construction.
    fn call(call: &Call) -> Self {
        Self { block: tool_use(call), input: Some(serde_json::from_str(&call.arguments).unwrap_or_default()) }
    }
}

pub fn thinking(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": ""})
}

/// Without its input.
pub fn tool_use(call: &Call) -> Value {
    let id = format!("toolu_{}", &uuid::Uuid::new_v4().simple().to_string()[..24]);
    json!({"type": "tool_use", "id": id, "name": call.name})
}

/// Sets `stop_reason` and `stop_sequence`.
pub fn stop(message: &mut Value, ending: &Ending) {
    let (reason, sequence) = match ending {
        Ending::Turn => ("end_turn", None),
        Ending::Length => ("max_tokens", None),
        Ending::Calls => ("tool_use", None),
        Ending::StopString(text) => ("stop_sequence", Some(text)),
    };
    message["stop_reason"] = reason.into();
    message["stop_sequence"] = sequence.cloned().into();
}
