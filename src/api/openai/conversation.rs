//! From the messages of a chat completion to those of a chat template.

use minijinja::value::{Value, ValueKind};

use crate::api::inference::choice::Choice;
use crate::api::inference::messages::{check_name, check_schema, not_text};
use crate::chat::conversation::{Conversation, Message, ToolCall};
use crate::error::{Error, Result};

use super::chat_request::{ChatMessage, ChatRequest, Content, WireCall};

const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];

impl ChatRequest {
    /// `model` is named in errors.
    ///
    /// # Errors
    /// User errors that name the message and part.
    pub fn conversation(&self, model: &str) -> Result<Conversation> {
        if self.functions.is_some() || self.function_call.is_some() {
            return Err(Error::user("functions and function_call are not supported; use tools"));
        }
        if self.messages.is_empty() {
            return Err(Error::user("messages is empty: at least one message is needed"));
        }
        let messages = self.messages.iter().enumerate().map(|(i, m)| message(&format!("messages[{i}]"), m, model));
        let messages: Vec<Message> = messages.collect::<Result<_>>()?;
        let continue_final_message = self.continue_final_message.unwrap_or(false);
        if continue_final_message && messages.last().is_none_or(|m| m.role != "assistant") {
            return Err(Error::user("continue_final_message: the last message is not the assistant's"));
        }
        Ok(Conversation { messages, tools: self.offered_tools()?, variables: self.variables(), continue_final_message })
    }

    fn offered_tools(&self) -> Result<Vec<Value>> {
        let tools = self.tools.clone().unwrap_or_default();
        for (i, tool) in tools.iter().enumerate() {
            check_tool(&format!("tools[{i}]"), tool)?;
        }
        match &self.tool_choice {
            None => Ok(tools),
            Some(choice) => match choice {
                Choice::Word(word) if word == "auto" => Ok(tools),
                Choice::Word(word) if word == "none" => Ok(Vec::new()),
                _ => Err(Error::user(format!(
                    "tool_choice is {choice}; a model cannot be forced to call a tool here: \"auto\" and \"none\" are \
                     supported"
                ))),
            },
        }
    }

    fn variables(&self) -> Vec<(String, Value)> {
        let mut variables = Vec::new();
        if let Some(effort) = &self.reasoning_effort {
            variables.push(("reasoning_effort".to_owned(), Value::from(effort.as_str())));
            variables.push(("enable_thinking".to_owned(), Value::from(effort != "none")));
        }
        variables.extend(self.chat_template_kwargs.clone().unwrap_or_default());
        variables
    }
}

fn check_tool(place: &str, tool: &Value) -> Result<()> {
    let field = |value: &Value, name: &str| value.get_attr(name).unwrap_or_default();
    if tool.kind() != ValueKind::Map || field(tool, "type").as_str() != Some("function") {
        return Err(Error::user(format!("{place} must be an object with type \"function\"")));
    }
    let function = field(tool, "function");
    check_name(&format!("{place}.function.name"), field(&function, "name").as_str())?;
    check_schema(&format!("{place}.function.parameters"), &field(&function, "parameters"))
}

fn message(place: &str, m: &ChatMessage, model: &str) -> Result<Message> {
    if !ROLES.contains(&m.role.as_str()) {
        return Err(Error::user(format!("{place}.role is {:?}; it must be one of {}", m.role, ROLES.join(", "))));
    }
    let calls = m.tool_calls.as_deref().unwrap_or_default();
    let content = match &m.content {
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let mut texts = Vec::new();
            for (i, part) in parts.iter().enumerate() {
                let place = format!("{place}.content[{i}]");
                if part.kind != "text" && part.kind != "refusal" {
                    return Err(not_text(&place, &part.kind, model));
                }
                let missing = || Error::user(format!("{place}.text is missing"));
                texts.push(part.text.as_deref().ok_or_else(missing)?);
            }
            texts.join("\n")
        }
        // Models that only call say nothing; templates add to the text, so it is one.
        None if m.role == "assistant" => String::new(),
        None => return Err(Error::user(format!("{place}.content is missing"))),
    };
    // To templates, developer is what system has always been.
    let role = if m.role == "developer" { "system" } else { &m.role };
    Ok(Message {
        reasoning_content: m.reasoning_content.clone(),
        tool_calls: calls.iter().enumerate().map(|(i, c)| call(place, i, c)).collect::<Result<_>>()?,
        tool_call_id: m.tool_call_id.clone(),
        name: m.name.clone(),
        ..Message::new(role, content)
    })
}

fn call(place: &str, i: usize, call: &WireCall) -> Result<ToolCall> {
    let text = call.function.arguments.as_deref().filter(|a| !a.trim().is_empty()).unwrap_or("{}");
    let arguments = serde_json::from_str::<Value>(text).ok().filter(|v| v.kind() == ValueKind::Map);
    let arguments = arguments.ok_or_else(|| {
        Error::user(format!("{place}.tool_calls[{i}].function.arguments is not a JSON object written as a string"))
    })?;
    Ok(ToolCall::new(call.id.clone(), call.function.name.clone(), arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(body: serde_json::Value) -> Result<Conversation> {
        let mut full = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        full.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        serde_json::from_str::<ChatRequest>(&full.to_string()).unwrap().conversation("tiny")
    }

    #[test]
    fn messages_become_what_templates_read() {
        let conversation = of(json!({"reasoning_effort": "none", "chat_template_kwargs": {"x": 1}, "messages": [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ]}));
        let conversation = conversation.unwrap();
        let roles: Vec<&str> = conversation.messages.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(conversation.messages[1].content, "a\nb");
        let assistant = &conversation.messages[2];
        assert_eq!((assistant.content.as_str(), assistant.reasoning_content.as_deref()), ("", Some("hm")));
        assert_eq!(assistant.tool_calls[0].function.arguments.get_attr("x").unwrap().as_i64(), Some(1));
        assert_eq!(conversation.messages[3].tool_call_id.as_deref(), Some("c1"));
        let names: Vec<&str> = conversation.variables.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["reasoning_effort", "enable_thinking", "x"]);
        assert!(!conversation.variables[1].1.is_true());
    }

    #[test]
    fn tools_may_be_withheld_but_not_forced() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let tools = |choice| of(json!({"tools": [tool], "tool_choice": choice})).map(|c| c.tools.len());
        assert_eq!(tools(json!("auto")).unwrap(), 1);
        assert_eq!(tools(json!("none")).unwrap(), 0);
        assert!(tools(json!("required")).unwrap_err().message.contains("\"required\""));
        assert!(tools(json!({"type": "function", "function": {"name": "f"}})).is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (
                "messages[0].content[1] is an image, but tiny takes text only",
                json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]}),
            ),
            ("messages[0].role is \"poet\"", json!({"messages": [{"role": "poet", "content": "x"}]})),
            ("messages[0].content is missing", json!({"messages": [{"role": "user"}]})),
            ("messages is empty", json!({"messages": []})),
            (
                "messages[0].tool_calls[0].function.arguments",
                json!({"messages": [{"role": "assistant",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}]}]}),
            ),
            ("tools[0] must be", json!({"tools": [{"function": {"name": "f"}}]})),
            ("tools[0].function.name is missing", json!({"tools": [{"type": "function", "function": {}}]})),
            (
                "tools[0].function.parameters",
                json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}),
            ),
            ("functions and function_call", json!({"functions": []})),
            ("continue_final_message", json!({"continue_final_message": true})),
        ];
        for (start, body) in cases {
            let e = of(body).unwrap_err().message;
            assert!(e.starts_with(start), "{start}: {e}");
        }
    }
}
