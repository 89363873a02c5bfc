//! A body that has arrived becomes a value, if there is room for what it may take in memory.

use axum::http::StatusCode;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tinderbox_client::types::lenient::parse_object;

use crate::error::{Error, shortened};
use crate::futures::admission::Permit;

use super::error::{ApiError, ApiResult};
use super::state::App;
use super::structure::parsed_bytes;

/// Larger ones are parsed on threads where they do not hold up others.
const LARGE: usize = 64 << 10;

/// How many times its limit a body may come to in memory. Token ids and floats come to a few times their text.
const EXPANSION: usize = 8;

/// Bytes of what the parser says; it quotes what is wrong.
const MAX_REASON: usize = 300;

/// The body as `T`, if what it is read into takes at most [`EXPANSION`] times `limit`, and there is room for that.
pub async fn read<T>(app: &App, bytes: Bytes, limit: usize, mut permit: Permit) -> ApiResult<(T, Permit)>
where
    T: DeserializeOwned + Send + 'static,
{
    let large = bytes.len() > LARGE;
    let whole = move || {
        let (size, limit) = (parsed_bytes(&bytes), limit.saturating_mul(EXPANSION));
        if size > limit {
            return Err(ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!(
                    "the request body holds so many objects and values that they may take {size} bytes; the limit is \
                     {limit} bytes"
                ),
            ));
        }
        permit.grow_to_read(size)?;
        Ok((parse(&bytes)?, permit))
    };
    if large { app.heavy(whole).await? } else { whole() }
}

/// A JSON object as `T`; 400 with the position and reason otherwise.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    parse_object(bytes)
        .map_err(|e| Error::user(format!("the request body is not valid: {}", shortened(&e.to_string(), MAX_REASON))))
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
    fn what_is_wrong_is_not_quoted_whole() {
        for bad in [format!("{{\"a\":\"{}\"}}", "ü".repeat(1 << 20)), format!("{{\"a\":{}}}", "9".repeat(300))] {
            let e = parse::<Lenient>(bad.as_bytes()).unwrap_err().message;
            assert!(e.len() < 400 && e.contains("at line 1 column"), "{e}");
        }
    }
}
