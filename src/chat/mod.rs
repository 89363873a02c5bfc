//! Between conversations and tokens: a model's chat template, its tokenizer, and what its output says.

pub mod conversation;
mod environment;
pub mod output;
mod python_json;
pub mod stop_text;
mod template;
pub mod tool_calls;

use std::path::Path;

use minijinja::value::Value;

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

use conversation::Conversation;
use output::Reading;
use template::Templates;
use tool_calls::Format;

/// What text in and out of one model needs.
pub struct Chat {
    pub tokenizer: Tokenizer,
    model: String,
    /// Why there are none, or `None` where the model has none.
    templates: Result<Option<Templates>>,
    /// The token that ends a turn, and its text.
    pub end_of_turn: Option<(u32, String)>,
    /// No token is longer than so many bytes.
    longest_token: usize,
}

impl Chat {
    /// Reads the tokenizer and templates of a model's directory. `model` is the name it is served under.
    ///
    /// # Errors
    /// A user error when the model has no tokenizer: text cannot be sent to it.
    pub fn load(model: &str, dir: &Path) -> Result<Self> {
        if !dir.join("tokenizer.json").is_file() {
            return Err(Error::user(format!("{model} has no tokenizer.json, so it takes token ids only")));
        }
        let tokenizer = Tokenizer::load(dir)?;
        let end = template::eos_token(dir)?.and_then(|text| Some((tokenizer.token_to_id(&text)?, text)));
        let longest_token = tokenizer.longest_token_bytes();
        Ok(Self { tokenizer, model: model.into(), templates: Templates::load(dir), end_of_turn: end, longest_token })
    }

    #[cfg(any(test, fuzzing))]
    pub fn with_template(model: &str, tokenizer: Tokenizer, template: &str) -> Self {
        let longest_token = tokenizer.longest_token_bytes();
        let templates = Templates::compile([("default".into(), template.into())].into(), [].into()).map(Some);
        Self { tokenizer, model: model.into(), templates, end_of_turn: None, longest_token }
    }

    /// The same with another template.
    #[cfg(fuzzing)]
    pub fn retemplated(self, template: &str) -> Self {
        let templates = Templates::compile([("default".into(), template.into())].into(), [].into()).map(Some);
        Self { templates, ..self }
    }

    /// The prompt's text and its token ids. `context` is the model's context length.
    ///
    /// # Errors
    /// User errors: no template, one that has no place for tools, what the template refuses, a text far too long.
    pub fn prompt(&self, conversation: &Conversation, context: usize) -> Result<(String, Vec<u32>)> {
        let templates = self.templates()?;
        if !conversation.tools.is_empty() && !templates.mention("tools") {
            return Err(Error::user(format!("tools: the chat template of {} has no place for tools", self.model)));
        }
        let text = templates.render(conversation)?;
        let ids = self.encode(&text, false, context)?;
        if ids.is_empty() {
            return Err(Error::user(format!(
                "the chat template of {} makes an empty prompt of these messages",
                self.model
            )));
        }
        Ok((text, ids))
    }

    /// Token ids of `text`.
    ///
    /// # Errors
    /// A user error when it cannot fit into the context; whether it does exactly is for others to say.
    pub fn encode(&self, text: &str, add_special_tokens: bool, context: usize) -> Result<Vec<u32>> {
        if text.len() / self.longest_token > context {
            return Err(Error::user(format!(
                "the prompt has {} bytes; more than the context length {context} of {} can hold",
                text.len(),
                self.model
            )));
        }
        self.tokenizer.encode(text, add_special_tokens)
    }

    /// How to read the answer to `prompt`, the text that [`Self::prompt`] made: which marks the model was taught.
    pub fn reading(&self, prompt: &str, tools: &[Value]) -> Reading {
        let Ok(Some(templates)) = &self.templates else { return Reading::default() };
        let thinks = templates.mention("</think>");
        let names = tools.iter().filter_map(|t| t.get_attr("function").ok()?.get_attr("name").ok()?.to_str());
        Reading {
            thinks,
            thinking: thinks && prompt.trim_end().ends_with("<think>"),
            tools: (!tools.is_empty()).then(|| Format::of(templates)),
            names: names.map(|n| n.to_string()).collect(),
        }
    }

    fn templates(&self) -> Result<&Templates> {
        self.templates.as_ref().map_err(Error::clone)?.as_ref().ok_or_else(|| {
            Error::user(format!(
                "{} has no chat template: put a chat_template.jinja into its directory, or send text to completions",
                self.model
            ))
        })
    }
}
