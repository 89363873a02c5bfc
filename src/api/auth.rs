//! Who is asking: the `X-API-Key` header becomes the owner of everything the request makes (protocol §2.2).

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;

use crate::ids::OwnerId;

use super::error::{ApiError, ApiResult};
use super::state::App;

/// Middleware of every route that is not open to all.
pub async fn require_key(State(app): State<App>, mut request: Request, next: Next) -> ApiResult<Response> {
    let key = request.headers().get("x-api-key").map(|v| v.to_str().unwrap_or_default());
    // The answer never repeats what was presented.
    let owner = app.keys().owner(key).ok_or_else(|| {
        ApiError::unauthorized(match key {
            None => "the header X-API-Key is missing; send a key that begins with tml-",
            Some(_) => "the API key is not known to this server",
        })
    })?;
    request.extensions_mut().insert(Owner(owner));
    Ok(next.run(request).await)
}

/// The owner found by `require_key`.
#[derive(Clone, Debug)]
pub struct Owner(pub OwnerId);

impl<S: Sync> FromRequestParts<S> for Owner {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::unauthorized("this route needs an API key"))
    }
}
