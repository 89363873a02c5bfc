//! The body of a chat completion.

use std::collections::BTreeMap;

use minijinja::Value;
use serde::Deserialize;

use super::sampling::Sampling;

#[derive(Clone, Debug, Deserialize)]
pub struct ChatRequest {
    pub model: String,
    pub messages: Vec<ChatMessage>,
    /// Shown to the chat template as they are.
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<serde_json::Value>,
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
    pub functions: Option<serde_json::Value>,
    pub function_call: Option<serde_json::Value>,
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

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "content must be a string or a list of parts")]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
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
