//! Errors as HTTP answers: a status and `{"detail": …}` with a Content-Length (protocol §1.6). Never 409.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::{Category, Error, shortened};
use crate::futures::admission::Full;

/// What a handler answers instead of a result.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    detail: String,
    /// `WWW-Authenticate`.
    challenge: Option<&'static str>,
    /// `Retry-After`, in seconds.
    retry_after: Option<u64>,
}

/// Longest `Retry-After`: clients take a longer one for none.
const RETRY_AFTER_MAX: u64 = 60;

/// Bytes of a detail. It may quote an id or a name that somebody made up.
const MAX_DETAIL: usize = 16 << 10;

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let detail = shortened(&detail, MAX_DETAIL).into_owned();
        Self { status, detail, challenge: None, retry_after: None }
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub fn with_challenge(self, challenge: &'static str) -> Self {
        Self { challenge: Some(challenge), ..self }
    }

    pub fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, detail)
    }

    /// `size` is all of it, or "at least" as much.
    pub fn too_large(what: &str, size: impl std::fmt::Display, limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("{what} has {size} bytes; the limit is {limit} bytes"))
    }
}

impl From<Error> for ApiError {
    fn from(e: Error) -> Self {
        let status = match e.category {
            Category::User => StatusCode::BAD_REQUEST,
            Category::NotFound => StatusCode::NOT_FOUND,
            Category::Server => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, e.message)
    }
}

/// Clients send the same request again, with the same number (protocol §12.2).
impl From<Full> for ApiError {
    fn from(full: Full) -> Self {
        let seconds = full.retry_after.as_secs_f64().ceil() as u64;
        let retry_after = Some(seconds.clamp(1, RETRY_AFTER_MAX));
        Self { retry_after, ..Self::new(StatusCode::TOO_MANY_REQUESTS, full.why) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        tracing::debug!(status = self.status.as_u16(), detail = %self.detail, "refused");
        let mut response = (self.status, Json(json!({ "detail": self.detail }))).into_response();
        if let Some(challenge) = self.challenge {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// No route of this name.
pub async fn unknown_route(uri: axum::http::Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no {}", uri.path()))
}

/// The route exists, but not with this method.
pub async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", uri.path()))
}

/// Longest text that is read back; axum's own are one line.
const MAX_TEXT: usize = 4096;

/// Middleware: what axum itself refuses, such as a path that is no UTF-8, it answers with text. Here it gets the shape
/// of all errors.
pub async fn in_one_shape(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let of_axum = response.headers().get(header::CONTENT_TYPE).is_some_and(|v| v.as_bytes().starts_with(b"text/plain"));
    if !of_axum || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = to_bytes(response.into_body(), MAX_TEXT).await.unwrap_or_default();
    ApiError::new(status, String::from_utf8_lossy(&text)).into_response()
}

/// The answer to a request whose handler panicked.
pub fn panicked(payload: Box<dyn std::any::Any + Send>) -> Response {
    let text = payload.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = %text, "a handler panicked");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the server's log says more").into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;
    use crate::api::{router, testing};

    #[test]
    fn who_is_sent_away_is_told_for_how_long() {
        for (retry_after, header) in [
            (Duration::ZERO, "1"),
            (Duration::from_millis(1001), "2"),
            (Duration::MAX, "60"),
            (Full::of_work("").retry_after, "5"),
        ] {
            let response = ApiError::from(Full { why: "full".into(), retry_after }).into_response();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(response.headers()[axum::http::header::RETRY_AFTER], header);
        }
    }

    #[tokio::test]
    async fn what_axum_refuses_has_the_shape_of_all_errors() {
        let (app, _engine) = testing::app().await;
        for (method, path, status) in [
            ("GET", "/api/v1/sessions/%ff", StatusCode::BAD_REQUEST),
            ("GET", "/api/v1/nothing", StatusCode::NOT_FOUND),
            ("PATCH", "/api/v1/sessions", StatusCode::METHOD_NOT_ALLOWED),
        ] {
            let request = Request::builder().method(method).uri(path).header("x-api-key", "tml-a");
            let response = router(app.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
            let body = to_bytes(response.into_body(), MAX_TEXT).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert!(body["detail"].is_string(), "{path}");
        }
    }
}
