//! What every body of an OpenAI answer begins with, whole or in chunks, and how its chunks end.

use axum::response::sse::Event;
use chrono::Utc;
use serde_json::{Value, json};

use crate::api::inference::sse::event;

use super::usage::Usage;

/// The kinds of answers.
pub struct Kind {
    /// Of their ids, without the dash.
    pub prefix: &'static str,
    /// `object` of an answer that is told at its end.
    pub whole: &'static str,
    /// `object` of each piece of one that is told while it grows.
    pub chunk: &'static str,
}

pub struct Envelope {
    kind: &'static Kind,
    id: String,
    created: i64,
    /// As the request named it.
    model: String,
    /// A stream's last chunk tells the usage; `null` stands for it in all others.
    tells_usage: bool,
}

impl Envelope {
    /// `tells_usage` as [`super::sampling::Sampling::includes_usage`] says.
    pub fn new(kind: &'static Kind, model: String, tells_usage: bool) -> Self {
        let id = format!("{}-{}", kind.prefix, uuid::Uuid::new_v4().simple());
        Self { kind, id, created: Utc::now().timestamp(), model, tells_usage }
    }

    /// All of the answer.
    pub fn whole(&self, choices: Vec<Value>, usage: Usage) -> Value {
        let mut body = self.body(self.kind.whole, choices);
        body["usage"] = json!(usage);
        body
    }

    /// A piece of it.
    pub fn chunk(&self, choices: Vec<Value>) -> Event {
        self.chunk_with(choices, None)
    }

    /// What follows the last choice's end.
    pub fn end(&self, usage: Usage) -> Vec<Event> {
        let usage = self.tells_usage.then(|| self.chunk_with(Vec::new(), Some(usage)));
        usage.into_iter().chain([Event::default().data("[DONE]")]).collect()
    }

    fn chunk_with(&self, choices: Vec<Value>, usage: Option<Usage>) -> Event {
        let mut chunk = self.body(self.kind.chunk, choices);
        if self.tells_usage {
            chunk["usage"] = json!(usage);
        }
        event(None, &chunk)
    }

    fn body(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }
}
