//! Anthropic's messages (protocol ch. 17).

mod conversation;
pub mod count_tokens;
pub mod messages;
pub mod request;
mod stream;
