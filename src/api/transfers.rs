//! Links to what is no checkpoint, uploads and exports: where they lead and how a file is sent.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use chrono::TimeDelta;
use tokio_util::io::ReaderStream;

use crate::error::{Error, Result};

/// How long a link works.
pub const LIFETIME: TimeDelta = TimeDelta::hours(1);

/// The absolute URL of `/api/v1`, as the client or its proxy reached this server.
pub fn api_url(headers: &HeaderMap) -> String {
    // Of several proxies the first is the one that the client sees.
    let first = |name: &str| {
        let text = headers.get(name)?.to_str().ok()?;
        text.split(',').next().map(str::trim).filter(|value| !value.is_empty())
    };
    let scheme = first("x-forwarded-proto").filter(|s| *s == "https").unwrap_or("http");
    let host = first("x-forwarded-host").or(first("host")).unwrap_or("localhost");
    format!("{scheme}://{host}/api/v1")
}

/// The whole file, with its length.
pub async fn send(file: tokio::fs::File) -> Result<Response> {
    let size = file.metadata().await.map_err(Error::from)?.len();
    let headers =
        [(header::CONTENT_TYPE, "application/octet-stream".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((headers, Body::from_stream(ReaderStream::with_capacity(file, 1 << 16))).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_where_the_client_came_from() {
        let url = |pairs: &[(&'static str, &'static str)]| {
            api_url(&pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect())
        };
        assert_eq!(url(&[("host", "h:1")]), "http://h:1/api/v1");
        let proxy = [("host", "inner:1"), ("x-forwarded-proto", "https, http"), ("x-forwarded-host", "outer, inner")];
        assert_eq!(url(&proxy), "https://outer/api/v1");
        assert_eq!(url(&[("x-forwarded-proto", "javascript")]), "http://localhost/api/v1");
    }
}
