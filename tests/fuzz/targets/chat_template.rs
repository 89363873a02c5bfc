//! Chat templates and the conversations they are given: a prompt or a refusal, within the bounds of steps and memory.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use tinderbox::api::fuzzing::{anthropic_messages, openai_chat};
use tinderbox::chat::Chat;
use tinderbox::tokenizer::Tokenizer;

const CONTEXT: usize = 4096;
/// What a model brings, for inputs that begin with its letter.
const TEMPLATES: [(&str, &str); 3] = [
    ("l", include_str!("../../golden/chat/llama.jinja")),
    ("q", include_str!("../../golden/chat/qwen2.jinja")),
    ("t", include_str!("../../golden/chat/qwen3.jinja")),
];

thread_local! {
    static CHAT: RefCell<Option<Chat>> = const { RefCell::new(None) };
}

// A template, or the letter of one, then NUL, then the body of a request.
fuzz_target!(|input: &str| {
    let Some((template, body)) = input.split_once('\0') else { return };
    let template = TEMPLATES.iter().find(|(letter, _)| *letter == template).map_or(template, |(_, known)| known);
    let conversation = openai_chat(body.as_bytes()).or_else(|_| anthropic_messages(body.as_bytes()));
    let Ok(conversation) = conversation else { return };
    let chat = CHAT.take().unwrap_or_else(chat).retemplated(template);
    let prompt = || chat.prompt(&conversation, CONTEXT).map_err(|e| e.message);
    let first = prompt();
    if let Ok((text, ids)) = &first {
        assert!(!ids.is_empty());
        assert!(text.len() <= (CONTEXT + 1) * chat.tokenizer.longest_token_bytes());
        let _ = chat.reading(text, &conversation.tools);
    }
    if !template.contains("strftime_now") {
        assert_eq!(prompt(), first, "another prompt for the same conversation");
    }
    CHAT.set(Some(chat));
});

fn chat() -> Chat {
    let json = include_bytes!("../../golden/chat/tokenizer.json");
    Chat::with_template("fuzzed", Tokenizer::from_json(json).expect("a good file"), "")
}
