//! OpenAI's completions and chat completions (protocol ch. 17).

pub mod chat;
pub mod chat_request;
pub mod completions;
pub mod completions_request;
mod conversation;
mod envelope;
pub mod logprobs;
pub mod models;
mod sampling;
mod usage;
