//! What can go wrong with a call, and who has to act.

use std::time::Duration;

use crate::convert::ConvertError;
use crate::types::futures::RequestErrorCategory;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server could not be reached, or went away in the middle; retries are used up.
    #[error("cannot reach the server: {0}")]
    Connection(String),
    /// The server refused the call.
    #[error("{method} {path} answered {status}: {detail}")]
    Status { method: String, path: String, status: u16, detail: String },
    /// The call was accepted, its work failed. Final: the request is not retried.
    #[error("request {request_id} failed ({}): {message}", category_name(*.category))]
    RequestFailed { request_id: String, message: String, category: RequestErrorCategory },
    /// The server no longer knows the promise (status 410).
    #[error("the server has lost request {request_id}: {detail}")]
    PromiseLost { request_id: String, detail: String },
    #[error("request {request_id} has no result after {:.1} s", .waited.as_secs_f64())]
    Timeout { request_id: String, waited: Duration },
    /// The server's answer makes no sense.
    #[error("unexpected answer: {0}")]
    Decode(String),
    /// The call makes no sense and was not sent.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// The HTTP status, if one was the reason.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::PromiseLost { .. } => Some(410),
            _ => None,
        }
    }

    /// Whether the caller or the server has to act.
    pub fn category(&self) -> RequestErrorCategory {
        match self {
            Self::RequestFailed { category, .. } => *category,
            Self::Status { status: 400..=499, .. } | Self::Usage(_) => RequestErrorCategory::User,
            Self::Status { .. } | Self::PromiseLost { .. } | Self::Decode(_) => RequestErrorCategory::Server,
            Self::Connection(_) | Self::Timeout { .. } => RequestErrorCategory::Unknown,
        }
    }
}

fn category_name(category: RequestErrorCategory) -> &'static str {
    match category {
        RequestErrorCategory::User => "user",
        RequestErrorCategory::Server => "server",
        RequestErrorCategory::Unknown => "unknown",
    }
}

impl From<reqwest::Error> for Error {
    fn from(e: reqwest::Error) -> Self {
        let mut message = e.to_string();
        let mut source = std::error::Error::source(&e);
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::Connection(message)
    }
}

impl From<ConvertError> for Error {
    fn from(e: ConvertError) -> Self {
        Self::Decode(e.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guilty_side() {
        let status = |status| Error::Status { method: "POST".into(), path: "/x".into(), status, detail: "no".into() };
        assert_eq!(status(404).category(), RequestErrorCategory::User);
        assert_eq!(status(503).category(), RequestErrorCategory::Server);
        assert_eq!(status(404).to_string(), "POST /x answered 404: no");
        let failed = Error::RequestFailed {
            request_id: "r".into(),
            message: "too long".into(),
            category: RequestErrorCategory::User,
        };
        assert_eq!(failed.to_string(), "request r failed (user): too long");
        assert_eq!(failed.status(), None);
    }
}
