//! A conversation in the form that chat templates read.

use minijinja::value::Value;
use serde::Serialize;

use crate::error::{Error, Result};

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// Each `{"type": "function", "function": {…}}`, in the order and spelling of the request.
    pub tools: Vec<Value>,
    /// Further variables, such as `enable_thinking`.
    pub variables: Vec<(String, Value)>,
    /// The last message is the beginning of the answer: no new turn is opened behind it.
    pub continue_final_message: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Message {
    pub role: String,
    pub content: String,
    /// What the assistant thought before it spoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's result: the call it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ToolCall {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: Function,
}

#[derive(Clone, Debug, Serialize)]
pub struct Function {
    pub name: String,
    /// An object: templates write it out themselves.
    pub arguments: Value,
}

impl Message {
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}

impl ToolCall {
    pub fn new(id: String, name: String, arguments: Value) -> Self {
        Self { id, kind: "function", function: Function { name, arguments } }
    }
}

impl Conversation {
    /// The rendered text up to the end of the last message, without what the template puts behind it. Blanks around a
    /// message count as far as the template kept them.
    pub(super) fn cut_behind_final_message(&self, mut text: String) -> Result<String> {
        let last = self.messages.last().map_or("", |m| m.content.as_str());
        let (bare, start) = (last.trim(), last.trim_start());
        let at = if bare.is_empty() { None } else { text.rfind(bare) };
        let Some(at) = at else {
            return Err(Error::user("the last message cannot be continued: the chat template does not show its text"));
        };
        let length = if text[at..].starts_with(start) { start.len() } else { bare.len() };
        text.truncate(at + length);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_message_is_left_open() {
        let of = |content: &str, text: &str| {
            let messages = vec![Message::new("assistant", content)];
            Conversation { messages, ..Conversation::default() }.cut_behind_final_message(text.into())
        };
        assert_eq!(of("Sure: ", "<a>Sure: <end>").unwrap(), "<a>Sure: ");
        assert_eq!(of("Sure: ", "<a>Sure:<end>").unwrap(), "<a>Sure:");
        assert_eq!(of("x", "x <a>x<end>").unwrap(), "x <a>x");
        assert!(of("x", "<a><end>").is_err() && of(" ", "<a> <end>").is_err());
    }
}
