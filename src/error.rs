//! The one error type: whose fault it is and what to tell them. Status codes are `api`'s business.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Who has to act. Spelled in lower case on the wire (protocol §10.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Category {
    /// The request is wrong; retrying it unchanged cannot help.
    User,
    /// The named thing does not exist, or not for this owner. A user error that HTTP answers with 404.
    NotFound,
    /// The server failed; the request itself was fine.
    Server,
}

/// An error that can be shown to the user as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Error {
    pub category: Category,
    pub message: String,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn user(message: impl Into<String>) -> Self {
        Self { category: Category::User, message: message.into() }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self { category: Category::NotFound, message: message.into() }
    }

    pub fn server(message: impl Into<String>) -> Self {
        Self { category: Category::Server, message: message.into() }
    }

    /// The same error with what was being done in front: `"{context}: {message}"`.
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// The category as the wire spells it.
    pub fn wire_category(&self) -> &'static str {
        match self.category {
            Category::User | Category::NotFound => "user",
            Category::Server => "server",
        }
    }
}

/// The text without its middle where it has more than about `limit` bytes: it may quote what somebody sent.
pub fn shortened(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return text.into();
    }
    let (head, tail) = (text.floor_char_boundary(limit / 2), text.ceil_char_boundary(text.len() - limit / 3));
    format!("{} … ({} bytes left out) … {}", &text[..head], tail - head, &text[tail..]).into()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self::server(e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_lose_their_middle() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcdefghijklm", 12), "abcdef … (3 bytes left out) … jklm");
        assert_eq!(shortened(&"ü".repeat(20), 12), "üüü … (30 bytes left out) … üü");
    }
}
