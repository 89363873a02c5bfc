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
use super::headers::text;
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
    // Every save has a directory of its own.
    let leaf = row.dir.file_name().unwrap_or_default().to_string_lossy();
    let response = send(content, &etag(&format!("{leaf}/{file}")), &headers, head);
    // The answer decides, not what was asked: a header that is not understood brings the whole file.
    if !head && response.status().is_success() {
        let mut what = audit_details(&path);
        what["file"] = file.as_str().into();
        what["purpose"] = "download".into();
        if let Some(part) = text(response.headers(), header::CONTENT_RANGE) {
            what["part"] = part.into();
        }
        app.store().note(Some(&row.owner), "checkpoint_downloaded", what);
    }
    Ok(response)
}

/// The absolute URL below which a checkpoint's files lie for a while, as the client reached this server.
fn link(app: &App, path: &CheckpointPath, headers: &HeaderMap) -> (String, DateTime<Utc>) {
    let expires = Utc::now() + LIFETIME;
    (format!("{}/download/{}", api_url(app, headers), app.links().seal_checkpoint(path, expires)), expires)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::store;
    use crate::store::checkpoints::CheckpointRow;
    use chrono::TimeDelta;

    #[tokio::test]
    async fn whatever_is_sent_of_a_checkpoint_is_noted() {
        let (app, _engine) = testing::app().await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("weights"), "0123456789").unwrap();
        let row = store::testing::checkpoint("tinker://s:train:0/weights/a", &owner().0);
        app.store().put_checkpoint(&CheckpointRow { dir: dir.path().into(), ..row.clone() }).await.unwrap();
        let token = app.links().seal_checkpoint(&row.path, Utc::now() + LIFETIME);
        let ask = async |method, range: Option<&'static str>| {
            let headers = range.map(|range| (header::RANGE, range.parse().unwrap())).into_iter().collect();
            let file = (token.clone(), "weights".to_owned());
            download(State(app.clone()), Path(file), method, headers).await.unwrap().status().as_u16()
        };
        assert_eq!(ask(Method::GET, None).await, 200);
        assert_eq!(ask(Method::GET, Some("x")).await, 200);
        assert_eq!(ask(Method::GET, Some("bytes=1-")).await, 206);
        assert_eq!(ask(Method::GET, Some("bytes=10-")).await, 416);
        assert_eq!(ask(Method::HEAD, None).await, 200);
        app.store().write_noted().await.unwrap();
        let (from, to) = (Utc::now() - TimeDelta::hours(1), Utc::now() + TimeDelta::hours(1));
        let noted = app.store().audit(&owner(), "checkpoint_downloaded", from, to, 100).await.unwrap();
        let mut parts: Vec<_> = noted.iter().map(|event| event.details["part"].as_str().unwrap_or("all")).collect();
        parts.sort_unstable();
        assert_eq!(parts, ["all", "all", "bytes 1-9/10"]);
    }
}
