//! OpenAI's clients send their key as `Authorization: Bearer KEY`: here that counts as `X-API-Key`.

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::api::auth::Missing;
use crate::api::headers::KEY;

const MISSING: Missing =
    Missing("no API key: send one that begins with tml- as Authorization: Bearer KEY, or in the header X-API-Key");

/// Middleware in front of `require_key`. `X-API-Key` decides when both are given.
pub async fn as_key(mut request: Request, next: Next) -> Response {
    if !request.headers().contains_key(KEY)
        && let Some(key) = request.headers().get(header::AUTHORIZATION).and_then(key_of)
    {
        request.headers_mut().insert(KEY, key);
    }
    request.extensions_mut().insert(MISSING);
    next.run(request).await
}

fn key_of(authorization: &HeaderValue) -> Option<HeaderValue> {
    let (scheme, key) = authorization.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { HeaderValue::from_str(key.trim()).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::StatusCode;
    use tower::ServiceExt;

    use super::*;
    use crate::api::{router, testing};

    #[tokio::test]
    async fn who_sends_no_key_is_told_both_ways() {
        let (app, _engine) = testing::app().await;
        for path in ["/v1/chat/completions", "/v1/messages", "/oai/api/v1/completions", "/anthropic/api/v1/messages"] {
            let answer = router(app.clone()).oneshot(Request::post(path).body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
            let text = to_bytes(answer.into_body(), 1 << 16).await.unwrap();
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains("Authorization: Bearer KEY, or in the header X-API-Key"), "{path}: {text}");
        }
        let answer = router(app).oneshot(Request::get("/api/v1/sessions").body(Body::empty()).unwrap()).await.unwrap();
        let text = to_bytes(answer.into_body(), 1 << 16).await.unwrap();
        assert!(!String::from_utf8_lossy(&text).contains("Bearer"), "not taken there");
    }

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
