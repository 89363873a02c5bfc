//! OpenAI's completions and chat completions (protocol ch. 17).

pub mod chat;
mod chat_request;
pub mod completions;
mod completions_request;
mod conversation;
pub mod logprobs;
pub mod models;
mod sampling;
mod usage;
