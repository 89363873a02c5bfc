//! Headers of requests.

use axum::http::header::AsHeaderName;
use axum::http::{HeaderMap, HeaderName};

/// Who asks (protocol ch. 2).
pub const KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The header as text; `None` when it is missing or no text.
pub fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
