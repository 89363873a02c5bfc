//! Errors as HTTP answers: a status and `{"detail": …}` with a Content-Length (protocol §1.6). Never 409.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::{Category, Error};
use crate::futures::admission::Full;

/// What a handler answers instead of a result.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    detail: String,
    /// `WWW-Authenticate`.
    challenge: Option<&'static str>,
}

pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), challenge: None }
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

    pub fn too_large(what: &str, limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("{what} is larger than the limit of {limit} bytes"))
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
        Self::new(StatusCode::TOO_MANY_REQUESTS, full.0)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        tracing::debug!(status = self.status.as_u16(), detail = %self.detail, "refused");
        let mut response = (self.status, Json(json!({ "detail": self.detail }))).into_response();
        if let Some(challenge) = self.challenge {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
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

/// The answer to a request whose handler panicked.
pub fn panicked(payload: Box<dyn std::any::Any + Send>) -> Response {
    let text = payload.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = %text, "a handler panicked");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the server's log says more").into_response()
}
