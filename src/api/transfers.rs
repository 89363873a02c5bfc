//! Links to files: where they lead, how long they work, and how a file is sent.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use chrono::TimeDelta;
use tokio_util::io::ReaderStream;

use crate::error::{Error, Result};

use super::origin::base_url;
use super::state::App;

/// How long a link works. Clients ask again when less than 5 minutes are left.
pub const LIFETIME: TimeDelta = TimeDelta::hours(1);

/// The absolute URL of `/api/v1`, as the client or its proxy reached this server.
pub fn api_url(app: &App, headers: &HeaderMap) -> String {
    format!("{}/api/v1", base_url(app.public_url(), headers))
}

/// The whole file, with its length.
pub async fn send(file: tokio::fs::File) -> Result<Response> {
    let size = file.metadata().await.map_err(Error::from)?.len();
    let headers =
        [(header::CONTENT_TYPE, "application/octet-stream".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((headers, Body::from_stream(ReaderStream::with_capacity(file, 1 << 16))).into_response())
}
