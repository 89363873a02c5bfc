//! Chat templates give the text and token ids that Transformers' `apply_chat_template` gives (tests/golden/make_chat.py).

use std::path::Path;

use minijinja::Value;
use serde::Deserialize;
use tinderbox::chat::Chat;
use tinderbox::chat::conversation::{Conversation, Message, ToolCall};

#[derive(Deserialize)]
struct Golden {
    tokens: serde_json::Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    name: String,
    messages: Vec<WireMessage>,
    #[serde(default)]
    tools: Vec<Value>,
    #[serde(default)]
    variables: std::collections::BTreeMap<String, Value>,
    #[serde(default)]
    continue_final_message: bool,
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct WireMessage {
    role: String,
    content: String,
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<WireCall>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct WireCall {
    id: String,
    function: WireFunction,
}

#[derive(Deserialize)]
struct WireFunction {
    name: String,
    arguments: Value,
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat"))
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap()
}

/// A model's directory with this template, as far as chats need it.
fn chat(template: &str, tokens: &serde_json::Value) -> Chat {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(folder().join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    std::fs::copy(folder().join(template).with_extension("jinja"), dir.path().join("chat_template.jinja")).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), tokens.to_string()).unwrap();
    Chat::load("m", dir.path()).unwrap()
}

fn conversation(case: &Case) -> Conversation {
    let message = |m: &WireMessage| Message {
        reasoning_content: m.reasoning_content.clone(),
        tool_calls: (m.tool_calls.iter())
            .map(|c| ToolCall::new(c.id.clone(), c.function.name.clone(), c.function.arguments.clone()))
            .collect(),
        tool_call_id: m.tool_call_id.clone(),
        ..Message::new(&m.role, m.content.clone())
    };
    Conversation {
        messages: case.messages.iter().map(message).collect(),
        tools: case.tools.clone(),
        variables: case.variables.clone().into_iter().collect(),
        continue_final_message: case.continue_final_message,
    }
}

#[test]
fn text_and_ids_equal_transformers() {
    let golden = golden();
    assert_eq!(golden.cases.len(), 30);
    for case in &golden.cases {
        let chat = chat(&case.template, &golden.tokens);
        let (text, ids) = chat.prompt(&conversation(case), 4096).unwrap();
        assert_eq!(text, case.text, "{}: {}", case.template, case.name);
        assert_eq!(ids, case.ids, "{}: {}", case.template, case.name);
    }
}

#[test]
fn what_a_model_cannot_do_is_said() {
    let golden = golden();
    let says = |chat: &Chat, conversation: &Conversation| chat.prompt(conversation, 64).unwrap_err().message;
    let question = Conversation { messages: vec![Message::new("user", "hi")], ..Conversation::default() };

    let stranger = Conversation { messages: vec![Message::new("poet", "hi")], ..Conversation::default() };
    assert!(says(&chat("qwen3", &golden.tokens), &stranger).contains("there is no role poet"));

    let long = Conversation { messages: vec![Message::new("user", "a".repeat(10_000))], ..Conversation::default() };
    assert!(says(&chat("qwen3", &golden.tokens), &long).contains("context length 64"));

    let dir = tempfile::tempdir().unwrap();
    assert!(Chat::load("bare", dir.path()).err().unwrap().message.contains("tokenizer.json"));
    std::fs::copy(folder().join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    assert!(says(&Chat::load("bare", dir.path()).unwrap(), &question).contains("bare has no chat template"));

    std::fs::write(dir.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let plain = Chat::load("plain", dir.path()).unwrap();
    assert_eq!(plain.prompt(&question, 64).unwrap().0, "hi");
    let with_tools = Conversation { tools: vec![Value::from("t")], ..question };
    assert!(says(&plain, &with_tools).contains("plain has no place for tools"));
}
