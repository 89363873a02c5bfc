//! Checkpoint files over plain links: exports, and the tar archive of old clients (protocol §13.4, §13.6).

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, TimeDelta, Utc};
use tinderbox_client::types::checkpoints::ExternalWeightsUrlsResponse;
use tokio_util::io::ReaderStream;

use crate::error::Error;
use crate::ids::{CheckpointKind, CheckpointPath};

use super::archive;
use super::auth::Owner;
use super::checkpoints::{Segments, path};
use super::error::{ApiError, ApiResult};
use super::state::App;

/// How long a link works. Clients ask again when less than 5 minutes are left.
const LINK_LIFETIME: TimeDelta = TimeDelta::hours(1);

/// The name under which a checkpoint's directory is served as one tar file.
const ARCHIVE: &str = "archive.tar";

/// A link for each file of an export; the links need no headers.
pub async fn external_weights_urls(
    State(app): State<App>,
    Owner(owner): Owner,
    segments: Segments,
    headers: HeaderMap,
) -> ApiResult<Json<ExternalWeightsUrlsResponse>> {
    let path = path(segments)?;
    let row = app.readable(&owner, &path).await?;
    if path.kind != CheckpointKind::External {
        let e =
            Error::user(format!("{path} is no export: make one with save_weights_external, then ask for its files"));
        return Err(e.into());
    }
    let (base, expires) = link(&app, &path, &headers);
    let mut urls = BTreeMap::new();
    for (name, _) in archive::files(&row.dir).await? {
        urls.insert(name.clone(), format!("{base}/{name}"));
    }
    Ok(Json(ExternalWeightsUrlsResponse { urls, expires }))
}

/// Old clients follow the redirect themselves and read `Expires`.
pub async fn archive_link(
    State(app): State<App>,
    Owner(owner): Owner,
    segments: Segments,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let path = path(segments)?;
    app.readable(&owner, &path).await?;
    let (base, expires) = link(&app, &path, &headers);
    let expires = expires.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let headers = [(header::LOCATION, format!("{base}/{ARCHIVE}")), (header::EXPIRES, expires)];
    Ok((StatusCode::FOUND, headers).into_response())
}

/// One file; the token in the URL is the credential.
pub async fn download(State(app): State<App>, Path((token, file)): Path<(String, String)>) -> ApiResult<Response> {
    let gone = || ApiError::new(StatusCode::NOT_FOUND, "this download link is not valid, or no longer");
    let path = app.links().verify(&token, Utc::now()).ok_or_else(gone)?;
    let dir = app.store().checkpoint(&path).await?.ok_or_else(gone)?.dir;
    let files = archive::files(&dir).await?;
    if file == ARCHIVE {
        return Ok(archive_body(dir, files));
    }
    // Only names that the directory really holds: nothing is joined that came from the URL.
    let (name, size) = files.into_iter().find(|(name, _)| *name == file).ok_or_else(gone)?;
    let opened = tokio::fs::File::open(dir.join(name)).await.map_err(Error::from)?;
    Ok(body(size, Body::from_stream(ReaderStream::with_capacity(opened, 1 << 16))))
}

fn archive_body(dir: PathBuf, files: Vec<(String, u64)>) -> Response {
    let files = archive::contents(files);
    let size = archive::size(&files);
    body(size, Body::from_stream(archive::stream(dir, files)))
}

/// The SDK's command line reports the Content-Length as the size.
fn body(size: u64, body: Body) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "application/octet-stream".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    (headers, body).into_response()
}

/// The absolute URL below which a checkpoint's files lie for a while, as the client reached this server.
fn link(app: &App, path: &CheckpointPath, headers: &HeaderMap) -> (String, DateTime<Utc>) {
    let expires = Utc::now() + LINK_LIFETIME;
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let scheme = text("x-forwarded-proto").filter(|s| *s == "https").unwrap_or("http");
    let host = text("x-forwarded-host").or(text("host")).unwrap_or("localhost");
    (format!("{scheme}://{host}/api/v1/download/{}", app.links().token(path, expires)), expires)
}
