//! Errors in the shape that each API's clients read: `{"error": …}` for OpenAI's, `{"type": "error", …}` for Anthropic's.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::error::ApiError;

use super::sse::event;

/// Longest error that is read back; our own are far shorter.
const MAX_ERROR: usize = 1 << 20;

/// Middleware around all routes: gives errors of these APIs their own shape, whoever made them.
pub async fn in_their_shape(request: Request, next: Next) -> Response {
    let shape = Shape::of(request.uri().path());
    let response = next.run(request).await;
    let status = response.status();
    match shape {
        Some(shape) if status.is_client_error() || status.is_server_error() => reshape(shape, status, response).await,
        _ => response,
    }
}

async fn reshape(shape: Shape, status: StatusCode, response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let bytes = to_bytes(body, MAX_ERROR).await.unwrap_or_default();
    let detail = serde_json::from_slice::<Value>(&bytes).ok().and_then(|v| v["detail"].as_str().map(str::to_owned));
    let Some(detail) = detail else { return Response::from_parts(parts, Body::from(bytes)) };
    let new = Json(shape.body(status, &detail)).into_response();
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    Response::from_parts(parts, new.into_body())
}

/// Whose shape an error has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    Anthropic,
}

impl Shape {
    /// By the path that was asked for; `None` for the Tinker API's own.
    fn of(path: &str) -> Option<Self> {
        let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if below("/v1/messages") || below("/anthropic/api/v1") {
            Some(Self::Anthropic)
        } else if below("/v1") || below("/oai/api/v1") {
            Some(Self::OpenAi)
        } else {
            None
        }
    }

    fn body(self, status: StatusCode, message: &str) -> Value {
        match self {
            Self::OpenAi => {
                let (kind, code) = openai(status);
                json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            }
            Self::Anthropic => json!({"type": "error", "error": {"type": anthropic(status), "message": message}}),
        }
    }

    /// An error in the middle of a stream, where no status can be told any more.
    pub fn late(self, error: &ApiError) -> Event {
        let kind = match self {
            Self::OpenAi => None,
            Self::Anthropic => Some("error"),
        };
        event(kind, &self.body(error.status(), error.detail()))
    }
}

/// Type and code.
fn openai(status: StatusCode) -> (&'static str, Option<&'static str>) {
    match status {
        StatusCode::UNAUTHORIZED => ("authentication_error", Some("invalid_api_key")),
        StatusCode::FORBIDDEN => ("permission_error", None),
        StatusCode::NOT_FOUND => ("invalid_request_error", Some("not_found")),
        StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", Some("rate_limit_exceeded")),
        s if s.is_server_error() => ("server_error", None),
        _ => ("invalid_request_error", None),
    }
}

fn anthropic(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        s if s.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_decides_the_shape() {
        assert_eq!(Shape::of("/v1/chat/completions"), Some(Shape::OpenAi));
        assert_eq!(Shape::of("/oai/api/v1/nothing"), Some(Shape::OpenAi));
        assert_eq!(Shape::of("/v1/messages/count_tokens"), Some(Shape::Anthropic));
        assert_eq!(Shape::of("/anthropic/api/v1/messages"), Some(Shape::Anthropic));
        for tinker in ["/api/v1/asample", "/v1x", "/"] {
            assert_eq!(Shape::of(tinker), None, "{tinker}");
        }
    }

    #[test]
    fn bodies() {
        let body = |shape: Shape| shape.body(StatusCode::NOT_FOUND, "no model");
        assert_eq!(
            body(Shape::OpenAi),
            json!({"error": {"message": "no model", "type": "invalid_request_error", "param": null, "code": "not_found"}})
        );
        assert_eq!(
            body(Shape::Anthropic),
            json!({"type": "error", "error": {"type": "not_found_error", "message": "no model"}})
        );
    }
}
