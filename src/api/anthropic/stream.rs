//! The events of a streamed message, in Anthropic's order: the message's start, blocks with their deltas, its end.

use axum::response::sse::Event;
use serde_json::{Value, json};

use crate::api::inference::answer::{Growing, Token};
use crate::api::inference::error_shapes::Shape;
use crate::api::inference::sse::{Teller, event};
use crate::chat::output::Part;
use crate::command::TokenEvent;

use super::messages::{Telling, stop, thinking, tool_use};

pub struct Stream {
    telling: Telling,
    answer: Growing,
    /// Kind of the block that is open.
    open: Option<Kind>,
    blocks: usize,
    tokens: Vec<Token>,
    /// Of the last `message_delta`.
    ending: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
}

impl Stream {
    pub fn new(telling: Telling) -> Self {
        let answer = Growing::new(telling.answer());
        Self { telling, answer, open: None, blocks: 0, tokens: Vec::new(), ending: json!({}) }
    }

    fn tell(&mut self, part: Part, events: &mut Vec<Event>) {
        match part {
            Part::Reasoning(text) => {
                self.open(Kind::Thinking, events);
                events.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
            }
            Part::Content(text) => {
                self.open(Kind::Text, events);
                events.push(self.delta(json!({"type": "text_delta", "text": text})));
            }
            Part::Call(call) => {
                self.close(events);
                let mut block = tool_use(&call);
                block["input"] = json!({});
                events.push(self.start_block(&block));
                events.push(self.delta(json!({"type": "input_json_delta", "partial_json": call.arguments})));
                events.push(self.stop_block());
            }
        }
    }

    fn open(&mut self, kind: Kind, events: &mut Vec<Event>) {
        if self.open == Some(kind) {
            return;
        }
        self.close(events);
        self.open = Some(kind);
        let empty = match kind {
            Kind::Thinking => thinking(""),
            Kind::Text => json!({"type": "text", "text": ""}),
        };
        events.push(self.start_block(&empty));
    }

    fn close(&mut self, events: &mut Vec<Event>) {
        if self.open.take().is_some() {
            events.push(self.stop_block());
        }
    }

    fn start_block(&self, block: &Value) -> Event {
        let kind = "content_block_start";
        event(Some(kind), &json!({"type": kind, "index": self.blocks, "content_block": block}))
    }

    fn delta(&self, delta: Value) -> Event {
        let kind = "content_block_delta";
        event(Some(kind), &json!({"type": kind, "index": self.blocks, "delta": delta}))
    }

    fn stop_block(&mut self) -> Event {
        let kind = "content_block_stop";
        let stopped = event(Some(kind), &json!({"type": kind, "index": self.blocks}));
        self.blocks += 1;
        stopped
    }
}

impl Teller for Stream {
    const SHAPE: Shape = Shape::Anthropic;

    fn start(&mut self) -> Vec<Event> {
        let kind = "message_start";
        let mut message = self.telling.message(0);
        message["content"] = json!([]);
        vec![
            event(Some(kind), &json!({"type": kind, "message": message})),
            event(Some("ping"), &json!({"type": "ping"})),
        ]
    }

    fn token(&mut self, _: usize, token: TokenEvent) -> Vec<Event> {
        let Some((parts, ending)) = self.answer.step(&token) else { return Vec::new() };
        self.tokens.push(Token::from(&token));
        if let Some(ending) = ending {
            stop(&mut self.ending, &ending);
        }
        let mut events = Vec::new();
        for part in parts {
            self.tell(part, &mut events);
        }
        events
    }

    fn end(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.close(&mut events);
        let kind = "message_delta";
        let usage = self.telling.usage(self.tokens.len());
        let mut last = json!({"type": kind, "delta": self.ending, "usage": usage});
        self.telling.add_tokens(&mut last, &self.tokens);
        events.push(event(Some(kind), &last));
        let kind = "message_stop";
        events.push(event(Some(kind), &json!({"type": kind})));
        events
    }
}
