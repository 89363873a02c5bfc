//! Checkpoint files over plain links: exports, and the tar archive of old clients (protocol §13.4, §13.6).

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use tinderbox_client::types::checkpoints::ExternalWeightsUrlsResponse;

use crate::error::Error;
use crate::ids::{CheckpointKind, CheckpointPath};

use super::archive;
use super::auth::Owner;
use super::checkpoints::{Segments, audit_details, path};
use super::content::{Content, Part};
use super::error::{ApiError, ApiResult};
use super::state::App;
use super::transfers::{LIFETIME, api_url, etag, send};

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

/// One file or a part of it; the token in the URL is the credential.
pub async fn download(
    State(app): State<App>,
    Path((token, file)): Path<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let gone = || ApiError::new(StatusCode::NOT_FOUND, "this download link is not valid, or no longer");
    let path = app.links().unseal_checkpoint(&token, Utc::now()).ok_or_else(gone)?;
    let row = app.store().checkpoint(&path).await?.ok_or_else(gone)?;
    let files = archive::files(&row.dir).await?;
    let content = if file == ARCHIVE {
        archive::tar(&row.dir, &archive::contents(files))
    } else {
        // Only names that the directory really holds: nothing is joined that came from the URL.
        let (name, size) = files.into_iter().find(|(name, _)| *name == file).ok_or_else(gone)?;
        Content(vec![Part::File(row.dir.join(name), size)])
    };
    let head = method == Method::HEAD;
    // A download in parts is noted with its first part.
    if !head && headers.get(header::RANGE).is_none_or(|range| range.as_bytes().starts_with(b"bytes=0-")) {
        let mut what = audit_details(&path);
        what["file"] = file.as_str().into();
        what["purpose"] = "download".into();
        app.store().note(Some(&row.owner), "checkpoint_downloaded", what);
    }
    // Every save has a directory of its own.
    let leaf = row.dir.file_name().unwrap_or_default().to_string_lossy();
    Ok(send(content, &etag(&format!("{leaf}/{file}")), &headers, head))
}

/// The absolute URL below which a checkpoint's files lie for a while, as the client reached this server.
fn link(app: &App, path: &CheckpointPath, headers: &HeaderMap) -> (String, DateTime<Utc>) {
    let expires = Utc::now() + LIFETIME;
    (format!("{}/download/{}", api_url(app, headers), app.links().seal_checkpoint(path, expires)), expires)
}
