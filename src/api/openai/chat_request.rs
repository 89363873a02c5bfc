//! The body of a chat completion.

use std::collections::BTreeMap;

use minijinja::Value;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use tinderbox_client::types::lenient;

use super::sampling::Sampling;
use crate::api::inference::choice::Choice;

#[derive(Clone, Debug, Deserialize)]
pub struct ChatRequest {
    pub model: String,
    pub messages: Vec<ChatMessage>,
    /// Shown to the chat template as they are.
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Choice>,
    pub parallel_tool_calls: Option<bool>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<i64>,
    /// `none` switches thinking off in templates that can.
    pub reasoning_effort: Option<String>,
    /// Ours: further variables of the chat template.
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Ours: the last message is the beginning of the answer.
    pub continue_final_message: Option<bool>,
    /// Before there were tools.
    pub functions: Option<IgnoredAny>,
    pub function_call: Option<IgnoredAny>,
    #[serde(flatten)]
    pub sampling: Sampling,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: Option<Content>,
    pub name: Option<String>,
    pub tool_calls: Option<Vec<WireCall>>,
    pub tool_call_id: Option<String>,
    /// What the assistant thought, as a response told it.
    pub reasoning_content: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        lenient::text_or_list(d, "content as a string or a list of parts", Self::Text, Self::Parts)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct ContentPart {
    #[serde(rename = "type")]
    pub kind: String,
    pub text: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct WireCall {
    #[serde(default)]
    pub id: String,
    pub function: WireFunction,
}

#[derive(Clone, Debug, Deserialize)]
pub struct WireFunction {
    pub name: String,
    /// A JSON object, written as a string.
    pub arguments: Option<String>,
}
