//! Who is asking: the `X-API-Key` header becomes the owner of everything the request makes (protocol ch. 2).

use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use chrono::Utc;
use serde_json::json;

use crate::ids::OwnerId;

use super::error::{ApiError, ApiResult};
use super::headers::KEY;
use super::keys::{Caller, Refused};
use super::state::App;

/// Middleware of every route that is not open to all.
pub async fn require_key(State(app): State<App>, mut request: Request, next: Next) -> ApiResult<Response> {
    let key = request.headers().get(KEY).map(|v| v.to_str().unwrap_or_default());
    let missing = request.extensions().get::<Missing>().filter(|_| key.is_none());
    let caller = app.keys().caller(key, Utc::now()).map_err(|mut refused| {
        refused.why = missing.map_or(refused.why, |missing| missing.0);
        app.note_refusal(&refused, request.method().as_str(), request.uri().path());
        ApiError::from(refused)
    })?;
    request.extensions_mut().insert(Owner(caller.owner.clone()));
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// What a request without a key is told, on routes that take it in other ways too.
#[derive(Clone, Copy)]
pub struct Missing(pub &'static str);

/// The owner found by `require_key`.
#[derive(Clone, Debug)]
pub struct Owner(pub OwnerId);

impl<S: Sync> FromRequestParts<S> for Owner {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(needs_key)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(needs_key)
    }
}

fn needs_key() -> ApiError {
    ApiError::unauthorized("this route needs an API key")
}

/// The answer never repeats what was presented. A client exchanges its key again only when told that its token is at
/// fault.
impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let error = Self::unauthorized(refused.why);
        if refused.token { error.with_challenge(r#"Bearer error="invalid_token""#) } else { error }
    }
}

/// Refusals go into the audit log, but a guesser must not fill the disk: so many a minute, the rest is counted.
const REFUSALS: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// Refusals noted in this minute, and those left out since the last one noted.
#[derive(Default)]
pub struct Refusals(Mutex<Window>);

#[derive(Default)]
struct Window {
    begun: Option<Instant>,
    noted: u32,
    left_out: u64,
}

impl Refusals {
    /// How many were left out before this one, if it may be noted.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().expect("no code panics while it holds these counts");
        if window.begun.is_none_or(|begun| now.duration_since(begun) >= MINUTE) {
            window.begun = Some(now);
            window.noted = 0;
        }
        if window.noted >= REFUSALS {
            window.left_out += 1;
            return None;
        }
        window.noted += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

impl App {
    fn note_refusal(&self, refused: &Refused, method: &str, path: &str) {
        let Some(left_out) = self.refusals().admit(Instant::now()) else { return };
        let path: String = path.chars().take(200).collect();
        let details = json!({ "reason": refused.why, "method": method, "path": path, "not_recorded_before": left_out });
        self.store().note(refused.owner.as_ref(), "key_refused", details);
        tracing::info!(reason = refused.why, "a request without a usable key");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_notes_so_many_refusals_and_the_next_says_how_many_more_there_were() {
        let refusals = Refusals::default();
        let start = Instant::now();
        assert!((0..REFUSALS).all(|_| refusals.admit(start) == Some(0)));
        assert!((0..5).all(|_| refusals.admit(start + MINUTE / 2).is_none()));
        assert_eq!(refusals.admit(start + MINUTE), Some(5));
        assert_eq!(refusals.admit(start + MINUTE), Some(0));
    }
}
