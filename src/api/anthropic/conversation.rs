//! From Anthropic's messages and blocks to the messages of a chat template.

use std::collections::HashMap;

use minijinja::value::{Value, ValueKind};

use crate::api::inference::choice::Choice;
use crate::api::inference::messages::{check_name, check_schema, not_text};
use crate::chat::conversation::{Conversation, Message, ToolCall};
use crate::error::{Error, Result};

use super::request::{Block, Content, PromptRequest, Tool};

impl PromptRequest {
    /// An assistant's message at the end is the beginning of the answer. `model` is named in errors.
    ///
    /// # Errors
    /// User errors that name the message and block.
    pub fn conversation(&self, model: &str) -> Result<Conversation> {
        let mut reader = Reader { model, messages: Vec::new(), names: HashMap::new() };
        if let Some(system) = &self.system {
            let text = reader.texts("system", system)?;
            reader.messages.push(Message::new("system", text));
        }
        if self.messages.is_empty() {
            return Err(Error::user("messages is empty: at least one message is needed"));
        }
        for (i, message) in self.messages.iter().enumerate() {
            let place = format!("messages[{i}]");
            match message.role.as_str() {
                "user" => reader.user(&place, &message.content)?,
                "assistant" => reader.assistant(&place, &message.content)?,
                other => {
                    return Err(Error::user(format!(
                        "{place}.role is {other:?}; it must be \"user\" or \"assistant\""
                    )));
                }
            }
        }
        let last = reader.messages.last();
        let continue_final_message = last.is_some_and(|m| m.role == "assistant" && m.tool_calls.is_empty());
        let messages = reader.messages;
        Ok(Conversation {
            messages,
            tools: self.offered_tools()?,
            variables: self.variables()?,
            continue_final_message,
        })
    }

    fn offered_tools(&self) -> Result<Vec<Value>> {
        let tools = self.tools.as_deref().unwrap_or_default().iter().enumerate();
        let tools: Vec<Value> = tools.map(|(i, t)| tool(&format!("tools[{i}]"), t)).collect::<Result<_>>()?;
        match self.tool_choice.as_ref().map(Choice::kind) {
            None | Some("auto") => Ok(tools),
            Some("none") => Ok(Vec::new()),
            Some(other) => Err(Error::user(format!(
                "tool_choice is {other:?}; a model cannot be forced to call a tool here: \"auto\" and \"none\" are \
                 supported"
            ))),
        }
    }

    /// Templates that can switch thinking do it by `enable_thinking`.
    fn variables(&self) -> Result<Vec<(String, Value)>> {
        let Some(thinking) = &self.thinking else { return Ok(Vec::new()) };
        let thinks = match thinking.kind.as_str() {
            "enabled" | "adaptive" => true,
            "disabled" => false,
            other => {
                return Err(Error::user(format!("thinking.type is {other:?}; it must be \"enabled\" or \"disabled\"")));
            }
        };
        Ok(vec![("enable_thinking".to_owned(), Value::from(thinks))])
    }
}

/// In the form that templates know tools in.
fn tool(place: &str, tool: &Tool) -> Result<Value> {
    if let Some(kind) = tool.kind.as_deref().filter(|k| *k != "custom") {
        return Err(Error::user(format!("{place}.type is {kind:?}: tools that the server runs are not supported")));
    }
    check_name(&format!("{place}.name"), tool.name.as_deref())?;
    let schema = tool.input_schema.clone().unwrap_or_default();
    check_schema(&format!("{place}.input_schema"), &schema)?;
    let mut function = vec![("name", Value::from(tool.name.as_deref()))];
    function.extend(tool.description.as_deref().map(|d| ("description", Value::from(d))));
    function.extend((schema.kind() == ValueKind::Map).then_some(("parameters", schema)));
    Ok(Value::from_pairs([("type", Value::from("function")), ("function", Value::from_pairs(function))]))
}

struct Reader<'a> {
    model: &'a str,
    messages: Vec<Message>,
    /// Tools' names by the ids of their calls: results name only these.
    names: HashMap<String, String>,
}

impl Reader<'_> {
    /// The joined text of a content that holds nothing else.
    fn texts(&self, place: &str, content: &Content) -> Result<String> {
        match content {
            Content::Text(text) => Ok(text.clone()),
            Content::Blocks(blocks) => {
                let one = |(i, b): (usize, &Block)| self.text(&format!("{place}[{i}]"), b);
                Ok(blocks.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?.join("\n"))
            }
        }
    }

    fn text(&self, place: &str, block: &Block) -> Result<String> {
        match block.kind.as_str() {
            "text" => block.text.clone().ok_or_else(|| Error::user(format!("{place}.text is missing"))),
            other => Err(not_text(place, other, self.model)),
        }
    }

    /// Results of tools become messages of their own; what is said stands together.
    fn user(&mut self, place: &str, content: &Content) -> Result<()> {
        let Content::Blocks(blocks) = content else {
            let text = self.texts(place, content)?;
            self.messages.push(Message::new("user", text));
            return Ok(());
        };
        let mut said: Vec<String> = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content[{i}]");
            if block.kind != "tool_result" {
                said.push(self.text(&place, block)?);
                continue;
            }
            self.say(&mut said);
            let id = block.tool_use_id.clone();
            let id = id.ok_or_else(|| Error::user(format!("{place}.tool_use_id is missing")))?;
            let text = match &block.content {
                None => String::new(),
                Some(content) => self.texts(&format!("{place}.content"), content)?,
            };
            let name = self.names.get(&id).cloned();
            self.messages.push(Message { tool_call_id: Some(id), name, ..Message::new("tool", text) });
        }
        self.say(&mut said);
        Ok(())
    }

    fn say(&mut self, said: &mut Vec<String>) {
        if !said.is_empty() {
            self.messages.push(Message::new("user", std::mem::take(said).join("\n")));
        }
    }

    fn assistant(&mut self, place: &str, content: &Content) -> Result<()> {
        let Content::Blocks(blocks) = content else {
            let text = self.texts(place, content)?;
            self.messages.push(Message::new("assistant", text));
            return Ok(());
        };
        let (mut said, mut thought) = (Vec::new(), Vec::new());
        let mut message = Message::new("assistant", "");
        for (i, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content[{i}]");
            match block.kind.as_str() {
                "thinking" => thought.extend(block.thinking.clone()),
                "redacted_thinking" => {}
                "tool_use" => message.tool_calls.push(self.call(&place, block)?),
                _ => said.push(self.text(&place, block)?),
            }
        }
        message.content = said.join("\n");
        message.reasoning_content = (!thought.is_empty()).then(|| thought.join("\n"));
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, place: &str, block: &Block) -> Result<ToolCall> {
        let missing = |field: &str| Error::user(format!("{place}.{field} is missing"));
        let name = block.name.clone().ok_or_else(|| missing("name"))?;
        let id = block.id.clone().ok_or_else(|| missing("id"))?;
        let input = block.input.clone().ok_or_else(|| missing("input"))?;
        if input.kind() != ValueKind::Map {
            return Err(Error::user(format!("{place}.input must be an object")));
        }
        self.names.insert(id.clone(), name.clone());
        Ok(ToolCall::new(id, name, input))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(body: serde_json::Value) -> Result<Conversation> {
        let mut full = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        full.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        serde_json::from_str::<PromptRequest>(&full.to_string()).unwrap().conversation("tiny")
    }

    #[test]
    fn blocks_become_what_templates_read() {
        let conversation = of(json!({
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "disabled"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "a"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                "content": [{"type": "text", "text": "one"}]}, {"type": "text", "text": "go on"}]},
        ]}));
        let conversation = conversation.unwrap();
        let said: Vec<(&str, &str)> =
            conversation.messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
        assert_eq!(
            said,
            [("system", "Be kind."), ("user", "hi"), ("assistant", "a"), ("tool", "one"), ("user", "go on")]
        );
        assert_eq!(conversation.messages[2].reasoning_content.as_deref(), Some("hm"));
        assert_eq!(conversation.messages[2].tool_calls[0].function.arguments.get_attr("x").unwrap().as_i64(), Some(1));
        assert_eq!(conversation.messages[3].name.as_deref(), Some("f"));
        let shown = conversation.tools[0].to_string();
        assert_eq!(
            shown,
            "{'type': 'function', 'function': {'name': 'f', 'description': 'd', 'parameters': {'type': 'object'}}}"
        );
        assert!(!conversation.variables[0].1.is_true() && !conversation.continue_final_message);
    }

    #[test]
    fn a_last_word_of_the_assistant_is_continued() {
        let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure:"}]);
        assert!(of(json!({ "messages": messages })).unwrap().continue_final_message);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let user = |blocks: serde_json::Value| json!({"messages": [{"role": "user", "content": blocks}]});
        let cases = [
            (
                "messages[0].content[0] is an image, but tiny takes text only",
                user(json!([{"type": "image", "source": {}}])),
            ),
            (
                "messages[0].content[0].content[0] is an image",
                user(json!([{"type": "tool_result", "tool_use_id": "t",
                "content": [{"type": "image"}]}])),
            ),
            ("messages[0].content[0].tool_use_id", user(json!([{"type": "tool_result"}]))),
            ("messages[0].role", json!({"messages": [{"role": "system", "content": "x"}]})),
            ("messages is empty", json!({"messages": []})),
            ("tools[0].type", json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})),
            ("tools[0].name is missing", json!({"tools": [{}]})),
            ("tool_choice is \"any\"", json!({"tool_choice": {"type": "any"}})),
            ("thinking.type", json!({"thinking": {"type": "perhaps"}})),
            (
                "messages[0].content[0].input must be",
                json!({"messages": [{"role": "assistant", "content": [
                {"type": "tool_use", "id": "t", "name": "f", "input": 1}]}]}),
            ),
        ];
        for (start, body) in cases {
            let e = of(body).unwrap_err().message;
            assert!(e.starts_with(start), "{start}: {e}");
        }
    }
}
