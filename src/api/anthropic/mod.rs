//! Anthropic's messages (protocol ch. 17).

mod conversation;
pub mod count_tokens;
pub mod messages;
mod request;
mod stream;
