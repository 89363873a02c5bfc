//! Tag `inference`: OpenAI's and Anthropic's APIs. Their bodies are theirs to define; here is what this server reads.

use serde_json::{Value, json};

use crate::api::anthropic::request::{MessagesRequest, PromptRequest};
use crate::api::openai::chat_request::ChatRequest;
use crate::api::openai::completions_request::CompletionRequest;

use super::examples::{MODEL, REQUEST};
use super::operation::{Operation, get, post};

/// Either API lies at two places.
const OPENAI: [(&str, &str); 2] = [("/v1", ""), ("/oai/api/v1", "oai_")];
const ANTHROPIC: [(&str, &str); 2] = [("/v1", ""), ("/anthropic/api/v1", "anthropic_")];

pub fn operations() -> Vec<Operation> {
    let openai = OPENAI.into_iter().flat_map(|(root, prefix)| openai(root, prefix));
    openai.chain(ANTHROPIC.into_iter().flat_map(|(root, prefix)| anthropic(root, prefix))).collect()
}

fn openai(root: &str, prefix: &str) -> Vec<Operation> {
    let path = |rest: &str| -> String { format!("{root}{rest}") };
    let id = |name: &str| -> String { format!("{prefix}{name}") };
    let model = json!({
        "id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "tinderbox", "root": MODEL,
        "max_model_len": 40960,
    });
    let usage = json!({ "prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11 });
    let all = vec![
        get(path("/models"), &id("list_models"))
            .says("The base models", "`client.models.list()` of the package `openai`.")
            .gives_like("Checkpoints and samplers are models too, but listed by the Tinker API.", json!({ "object": "list", "data": [model] })),
        get(path("/models/{model}"), &id("get_model"))
            .says("One model", "`client.models.retrieve()`: a base model, a checkpoint `tinker://…` or a sampler's id.")
            .segment("model", "Its name; a `/` in it stays as it is.", MODEL)
            .gives_like("It can be sampled from.", model),
        post(path("/completions"), &id("completions"))
            .says(
                "Continue a text",
                "`client.completions.create()` of the package `openai`. `prompt` is a text, token ids or a list of such. \
                 `return_token_ids` adds the ids of prompt and answer with logprobs.",
            )
            .takes_like::<CompletionRequest>(sampling(json!({
                "prompt": { "type": ["string", "array"], "description": "A string, token ids, or a list of either." },
                "logprobs": { "type": ["integer", "null"], "minimum": 0, "maximum": 20 },
                "echo": { "type": ["boolean", "null"] },
            }), &["prompt"]), json!({ "model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "seed": 7 }))
            .gives_like("The answer.", json!({
                "id": REQUEST, "object": "text_completion", "created": 1_700_000_000, "model": MODEL, "usage": usage,
                "choices": [{ "index": 0, "text": " there was", "finish_reason": "length", "logprobs": null }],
            }))
            .gives_events("With `stream: true`: `data:` lines with pieces of the answer, `[DONE]` at the end."),
        post(path("/chat/completions"), &id("chat_completions"))
            .says(
                "Answer a chat",
                "`client.chat.completions.create()` of the package `openai`. The prompt is made by the model's own chat \
                 template, tools included; `tool_choice` may be `auto` or `none`.",
            )
            .takes_like::<ChatRequest>(sampling(json!({
                "messages": { "type": "array", "items": { "type": "object", "required": ["role"] } },
                "tools": { "type": ["array", "null"] },
                "logprobs": { "type": ["boolean", "null"] },
                "top_logprobs": { "type": ["integer", "null"], "minimum": 0, "maximum": 20 },
            }), &["messages"]), json!({
                "model": MODEL, "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 8, "seed": 7,
            }))
            .gives_like("The answer.", json!({
                "id": REQUEST, "object": "chat.completion", "created": 1_700_000_000, "model": MODEL, "usage": usage,
                "choices": [{
                    "index": 0, "finish_reason": "length", "logprobs": null,
                    "message": { "role": "assistant", "content": null, "refusal": null },
                }],
            }))
            .gives_events("With `stream: true`: `data:` lines with pieces of the answer, `[DONE]` at the end."),
    ];
    let error = json!({ "error": { "message": "what was wrong", "type": "invalid_request_error", "param": null, "code": null } });
    all.into_iter().map(|operation| operation.refuses_like(&error)).collect()
}

fn anthropic(root: &str, prefix: &str) -> Vec<Operation> {
    let path = |rest: &str| -> String { format!("{root}{rest}") };
    let prompt = json!({
        "model": { "type": "string" },
        "messages": { "type": "array", "items": { "type": "object", "required": ["role", "content"] } },
        "system": { "type": ["string", "array", "null"], "description": "A string or a list of text blocks." },
        "tools": { "type": ["array", "null"] },
    });
    let mut whole = prompt.clone();
    whole["max_tokens"] = json!({ "type": "integer", "minimum": 1 });
    whole["stop_sequences"] = json!({ "type": ["array", "null"] });
    whole["temperature"] = json!({ "type": ["number", "null"], "minimum": 0 });
    whole["stream"] = json!({ "type": ["boolean", "null"] });
    whole["return_token_ids"] = json!({ "type": ["boolean", "null"] });
    let example = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "Hello" }] });
    let mut asked = example.clone();
    asked["max_tokens"] = json!(8);
    let all = vec![
        post(path("/messages"), &format!("{prefix}messages"))
            .says(
                "Answer a conversation",
                "`client.messages.create()` of the package `anthropic`. Thoughts come as `thinking` blocks, calls of tools \
                 as `tool_use`.",
            )
            .takes_like::<MessagesRequest>(object(whole, &["model", "messages", "max_tokens"]), asked)
            .gives_like("The answer.", json!({
                "id": REQUEST, "type": "message", "role": "assistant", "model": MODEL, "content": [], "stop_reason": "max_tokens",
                "stop_sequence": null,
                "usage": { "input_tokens": 3, "output_tokens": 8, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0 },
            }))
            .gives_events("With `stream: true`: events from `message_start` to `message_stop`."),
        post(path("/messages/count_tokens"), &format!("{prefix}count_tokens"))
            .says("Count a prompt's tokens", "`client.messages.count_tokens()` of the package `anthropic`.")
            .takes_like::<PromptRequest>(object(prompt, &["model", "messages"]), example)
            .gives_like("The length of the prompt that the chat template makes.", json!({ "input_tokens": 3 })),
    ];
    let error = json!({ "type": "error", "error": { "type": "invalid_request_error", "message": "what was wrong" } });
    all.into_iter().map(|operation| operation.refuses_like(&error)).collect()
}

/// A body with these fields and those that say how to sample.
fn sampling(mut fields: Value, required: &[&str]) -> Value {
    let number = json!({ "type": ["number", "null"], "minimum": 0 });
    let count = json!({ "type": ["integer", "null"], "minimum": 1 });
    let flag = json!({ "type": ["boolean", "null"] });
    fields["model"] = json!({ "type": "string" });
    fields["temperature"] = number.clone();
    fields["top_p"] = json!({ "type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1 });
    fields["top_k"] = json!({ "type": ["integer", "null"], "minimum": -1 });
    fields["max_tokens"] = json!({ "type": ["integer", "null"], "minimum": 0 });
    fields["n"] = count;
    fields["seed"] = json!({ "type": ["integer", "null"] });
    fields["stop"] = json!({ "type": ["string", "array", "null"], "description": "A string or a list of strings." });
    fields["stream"] = flag.clone();
    fields["return_token_ids"] = flag;
    object(fields, &[&["model"], required].concat())
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}
