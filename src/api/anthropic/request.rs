//! The bodies of `messages` and `count_tokens`.

use minijinja::Value;
use serde::{Deserialize, Deserializer};
use tinderbox_client::types::lenient;

use crate::api::inference::choice::Choice;

#[derive(Clone, Debug, Deserialize)]
pub struct MessagesRequest {
    pub max_tokens: i64,
    pub stop_sequences: Option<Vec<String>>,
    pub stream: Option<bool>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    /// Ours: the same seed draws the same answer.
    #[serde(default, deserialize_with = "lenient::seed")]
    pub seed: Option<u64>,
    /// Ours: prompt and answer also as token ids, with logprobs.
    pub return_token_ids: Option<bool>,
    #[serde(flatten)]
    pub prompt: PromptRequest,
}

/// What decides the prompt; the whole body of `count_tokens`.
#[derive(Clone, Debug, Deserialize)]
pub struct PromptRequest {
    pub model: String,
    pub messages: Vec<WireMessage>,
    pub system: Option<Content>,
    pub tools: Option<Vec<Tool>>,
    pub tool_choice: Option<Choice>,
    pub thinking: Option<Thinking>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct WireMessage {
    pub role: String,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        lenient::text_or_list(d, "content as a string or a list of blocks", Self::Text, Self::Blocks)
    }
}

/// All kinds of blocks; which fields there are depends on `kind`.
#[derive(Clone, Debug, Deserialize)]
pub struct Block {
    #[serde(rename = "type")]
    pub kind: String,
    pub text: Option<String>,
    pub thinking: Option<String>,
    pub id: Option<String>,
    pub name: Option<String>,
    pub input: Option<Value>,
    pub tool_use_id: Option<String>,
    pub content: Option<Box<Content>>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Tool {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub name: Option<String>,
    pub description: Option<String>,
    pub input_schema: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Thinking {
    #[serde(rename = "type")]
    pub kind: String,
}
