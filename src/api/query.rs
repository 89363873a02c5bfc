//! Query strings, with errors as JSON, and the pages of the lists.

use axum::extract::{FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

use super::error::ApiError;

/// The query string as `T`; 400 with the reason otherwise.
pub struct QueryOf<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for QueryOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> std::result::Result<Self, ApiError> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Self(value)),
            Err(e) => {
                Err(ApiError::new(StatusCode::BAD_REQUEST, format!("the query string is not valid: {}", e.body_text())))
            }
        }
    }
}

/// Rows of one page. A client takes a page shorter than its limit for the last, so 1000 must pass unchanged.
const MAX_LIMIT: u64 = 1000;

/// Limit and offset, checked.
pub fn page(limit: i64, offset: i64) -> Result<(u64, u64)> {
    let limit = u64::try_from(limit).ok().filter(|n| *n <= MAX_LIMIT);
    let limit = limit.ok_or_else(|| Error::user(format!("limit must lie between 0 and {MAX_LIMIT}")))?;
    let offset = u64::try_from(offset).map_err(|_| Error::user("offset must not be negative"))?;
    Ok((limit, offset))
}
