//! Links to files: where they lead, how long they work, and how a file is sent.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::TimeDelta;
use sha2::{Digest, Sha256};

use super::content::Content;
use super::headers::text;
use super::origin::base_url;
use super::range::{Wanted, wanted};
use super::state::App;

/// How long a link works. Clients ask again when less than 5 minutes are left.
pub const LIFETIME: TimeDelta = TimeDelta::hours(1);

/// The absolute URL of `/api/v1`, as the client or its proxy reached this server.
pub fn api_url(app: &App, headers: &HeaderMap) -> String {
    format!("{}/api/v1", base_url(app.public_url(), headers))
}

/// A name for these bytes: the same `of` must always mean the same ones.
pub fn etag(of: &str) -> String {
    format!("\"{}\"", hex::encode(&Sha256::digest(of)[..16]))
}

/// 200 with everything, 206 with the part that was asked for, or 416. The SDK's command line reports the Content-Length
/// as the size.
pub fn send(content: Content, etag: &str, request: &HeaderMap, head: bool) -> Response {
    let size = content.size();
    // A part of other bytes than those the client has the rest of is of no use to it.
    let same = request.get(header::IF_RANGE).is_none_or(|tag| tag.as_bytes() == etag.as_bytes());
    let range = text(request, header::RANGE).filter(|_| same);
    let (status, range, content_range) = match wanted(range, size) {
        Wanted::All => (StatusCode::OK, 0..size, None),
        Wanted::Part(part) => {
            let content_range = format!("bytes {}-{}/{size}", part.start, part.end - 1);
            (StatusCode::PARTIAL_CONTENT, part, Some(content_range))
        }
        Wanted::Nothing => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0, Some(format!("bytes */{size}"))),
    };
    let length = range.end - range.start;
    let body = if head || length == 0 { Body::empty() } else { Body::from_stream(content.stream(range)) };
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
        (header::ETAG, etag.to_owned()),
        // Whoever has the link may read it, nobody else.
        (header::CACHE_CONTROL, "private".to_owned()),
    ];
    let mut response = (status, headers, body).into_response();
    if let Some(value) = content_range.and_then(|v| v.parse().ok()) {
        response.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    response
}
