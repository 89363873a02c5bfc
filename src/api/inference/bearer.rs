//! OpenAI's clients send their key as `Authorization: Bearer KEY`: here that counts as `X-API-Key`.

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::api::headers::KEY;

/// Middleware in front of `require_key`. `X-API-Key` decides when both are given.
pub async fn as_key(mut request: Request, next: Next) -> Response {
    if !request.headers().contains_key(KEY)
        && let Some(key) = request.headers().get(header::AUTHORIZATION).and_then(key_of)
    {
        request.headers_mut().insert(KEY, key);
    }
    next.run(request).await
}

fn key_of(authorization: &HeaderValue) -> Option<HeaderValue> {
    let (scheme, key) = authorization.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { HeaderValue::from_str(key.trim()).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearers_are_taken() {
        let of = |text: &'static str| key_of(&HeaderValue::from_static(text));
        assert_eq!(of("Bearer tml-a").unwrap(), "tml-a");
        assert_eq!(of("bearer  tml-a ").unwrap(), "tml-a");
        for other in ["Basic dG1sOg==", "tml-a", ""] {
            assert!(of(other).is_none(), "{other}");
        }
    }
}
