//! Request bodies: bounded, decompressed, and every problem with them a 4xx that says what it is.

use std::io::Read;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tinderbox_client::types::lenient::parse_object;

use crate::error::Error;
use crate::ids::{ModelId, OwnerId};

use super::auth::Owner;
use super::error::{ApiError, ApiResult};
use super::state::App;

/// A JSON object. Unlike axum's own extractor it ignores the content type and answers every fault with 400.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body, app.limits().json_body_bytes).await?;
        Ok(Self(parse(&bytes)?))
    }
}

/// As [`JsonBody`], for requests with `model_id` and `seq_id`: when the rest of the body is wrong, the number is
/// spent, so that later requests of the run do not wait for it (protocol §11.2 rule 4).
pub struct NumberedBody<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequest<App> for NumberedBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let (mut parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body, app.limits().json_body_bytes).await?;
        let Owner(owner) = Owner::from_request_parts(&mut parts, app).await?;
        Ok(Self(parse_numbered(app, &owner, &bytes).await?))
    }
}

/// As [`parse`]; a wrong body's number is spent.
pub async fn parse_numbered<T: DeserializeOwned>(app: &App, owner: &OwnerId, bytes: &[u8]) -> Result<T, Error> {
    let error = match parse(bytes) {
        Ok(value) => return Ok(value),
        Err(e) => e,
    };
    if let Some((model, seq)) = number_of(bytes) {
        app.refuse(owner, model, seq).await;
    }
    Err(error)
}

/// The whole body, at most `limit` bytes before and after decompression.
pub async fn read(headers: &HeaderMap, body: Body, limit: usize) -> ApiResult<Bytes> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|n| n > limit) {
        return Err(ApiError::too_large("the request body", limit));
    }
    let raw = to_bytes(body, limit).await.map_err(|e| broken(&e, limit))?;
    let encoding = headers.get(header::CONTENT_ENCODING).map_or("", |v| v.to_str().unwrap_or("?"));
    match encoding {
        "" | "identity" => Ok(raw),
        "zstd" => {
            tokio::task::spawn_blocking(move || unzstd(&raw, limit)).await.map_err(|e| Error::server(e.to_string()))?
        }
        other => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("Content-Encoding {other:?} is not supported; send zstd or none"),
        )),
    }
}

/// A JSON object as `T`; 400 with the position and reason otherwise.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    parse_object(bytes).map_err(|e| Error::user(format!("the request body is not valid: {e}")))
}

fn broken(e: &axum::Error, limit: usize) -> ApiError {
    let text = std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string);
    if text.contains("length limit") {
        return ApiError::too_large("the request body", limit);
    }
    ApiError::new(StatusCode::BAD_REQUEST, format!("the request body could not be read: {text}"))
}

fn unzstd(raw: &[u8], limit: usize) -> ApiResult<Bytes> {
    let bad = |e: std::io::Error| ApiError::from(Error::user(format!("the zstd body cannot be decompressed: {e}")));
    // Most frames say how large they unpack; the limit below holds for those that do not, or lie.
    if let Ok(Some(n)) = zstd::zstd_safe::get_frame_content_size(raw)
        && n > limit as u64
    {
        return Err(ApiError::too_large("the decompressed request body", limit));
    }
    let mut out = Vec::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(raw).map_err(bad)?;
    decoder.take(limit as u64 + 1).read_to_end(&mut out).map_err(bad)?;
    if out.len() > limit {
        return Err(ApiError::too_large("the decompressed request body", limit));
    }
    Ok(out.into())
}

fn number_of(bytes: &[u8]) -> Option<(ModelId, u64)> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    Some((ModelId(value.get("model_id")?.as_str()?.into()), value.get("seq_id")?.as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug)]
    struct Lenient {
        #[serde(default)]
        #[expect(dead_code, reason = "only whether it parses matters")]
        a: u8,
    }

    #[test]
    fn only_objects_are_bodies() {
        for bad in ["", "{", "[]", "null", "\"text\"", "[1,2", "{\"a\": \"x\"}"] {
            assert!(parse::<Lenient>(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse::<Lenient>(b" {}").is_ok());
    }

    #[test]
    fn nesting_is_an_error_not_an_overflow() {
        let nested = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
        assert!(parse::<Lenient>(format!("{{\"a\":{nested}}}").as_bytes()).is_err());
        assert!(parse::<serde_json::Value>(format!("{{\"a\":{nested}}}").as_bytes()).is_err());
        // What nobody reads is skipped without recursion.
        assert!(parse::<Lenient>(format!("{{\"b\":{nested}}}").as_bytes()).is_ok());
    }

    #[test]
    fn a_bomb_is_cut_off() {
        let bomb = zstd::encode_all(&vec![0u8; 1 << 20][..], 3).unwrap();
        assert!(bomb.len() < 1000);
        assert!(unzstd(&bomb, 1 << 16).is_err());
        assert_eq!(unzstd(&bomb, 1 << 20).unwrap().len(), 1 << 20);
        assert!(unzstd(b"not zstd", 100).is_err());
    }

    #[test]
    fn the_number_of_a_wrong_body_is_found() {
        let body = br#"{"model_id":"m","seq_id":4,"adam_params":{"learning_rate":"high"}}"#;
        assert_eq!(number_of(body), Some((ModelId("m".into()), 4)));
        assert_eq!(number_of(b"{\"seq_id\":4}"), None);
    }
}
