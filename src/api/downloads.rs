//! Checkpoint files over plain links: exports, and the tar archive of old clients (protocol §13.4, §13.6).

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use tinderbox_client::types::checkpoints::ExternalWeightsUrlsResponse;

use super::links::CheckpointLink;
use crate::error::Error;
use crate::ids::{CheckpointKind, OwnerId};
use crate::store::checkpoints::CheckpointRow;

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
    let (base, expires) = link(&app, &owner, &row, &headers);
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
    let row = app.readable(&owner, &path).await?;
    let (base, expires) = link(&app, &owner, &row, &headers);
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
    let link = app.links().unseal_checkpoint(&token, Utc::now()).ok_or_else(gone)?;
    let row = app.store().checkpoint(&link.path).await?;
    let opened = row.filter(|row| save(row) == link.save && (row.public || !link.while_published));
    let row = opened.ok_or_else(gone)?;
    let files = archive::files(&row.dir).await?;
    let content = if file == ARCHIVE {
        archive::tar(&row.dir, &archive::contents(files))
    } else {
        // Only names that the directory really holds: nothing is joined that came from the URL.
        let (name, size) = files.into_iter().find(|(name, _)| *name == file).ok_or_else(gone)?;
        Content(vec![Part::File(row.dir.join(name), size)])
    };
    let head = method == Method::HEAD;
    let response = send(content, &etag(&format!("{}/{file}", save(&row))), &headers, head);
    // The answer decides, not what was asked: a header that is not understood brings the whole file.
    if !head && response.status().is_success() {
        let mut what = audit_details(&row.path);
        what["file"] = file.as_str().into();
        what["purpose"] = "download".into();
        if let Some(part) = text(response.headers(), header::CONTENT_RANGE) {
            what["part"] = part.into();
        }
        app.store().note(Some(&row.owner), "checkpoint_downloaded", what);
    }
    Ok(response)
}

/// The absolute URL below which a checkpoint's files lie for a while for this owner, as the client reached this server.
fn link(app: &App, owner: &OwnerId, row: &CheckpointRow, headers: &HeaderMap) -> (String, DateTime<Utc>) {
    let expires = Utc::now() + LIFETIME;
    let link =
        CheckpointLink { path: row.path.clone(), save: save(row).into_owned(), while_published: row.owner != *owner };
    (format!("{}/download/{}", api_url(app, headers), app.links().seal_checkpoint(&link, expires)), expires)
}

/// Names the bytes of a checkpoint: every save has a directory of its own.
fn save(row: &CheckpointRow) -> Cow<'_, str> {
    row.dir.file_name().unwrap_or_default().to_string_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::store;
    use chrono::TimeDelta;

    /// What `archive_link` gives this owner: the token in the place it leads to, or no link.
    async fn token(app: &App, owner: &str) -> Option<String> {
        let segments = Path(("s:train:0".into(), "weights".into(), "a".into()));
        let answer = archive_link(State(app.clone()), Owner(OwnerId(owner.into())), segments, HeaderMap::new()).await;
        let response = answer.ok()?;
        let place = response.headers()[header::LOCATION].to_str().unwrap();
        Some(place.rsplit('/').nth(1).unwrap().to_owned())
    }

    async fn read(app: &App, token: &str, file: &str) -> Result<Vec<u8>, StatusCode> {
        let asked = Path((token.to_owned(), file.to_owned()));
        let answer = download(State(app.clone()), asked, Method::GET, HeaderMap::new()).await;
        let response = answer.map_err(|e| e.into_response().status())?;
        Ok(axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap().to_vec())
    }

    #[tokio::test]
    async fn a_link_opens_the_save_it_was_given_for_and_anothers_only_what_is_published() {
        let (app, _engine) = testing::app().await;
        let saves = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let row = |n: usize| CheckpointRow {
            dir: saves[n].path().into(),
            ..store::testing::checkpoint("tinker://s:train:0/weights/a", &owner().0)
        };
        for (dir, bytes) in saves.iter().zip(["old", "new"]) {
            std::fs::write(dir.path().join("weights"), bytes).unwrap();
        }
        let gone = Err(StatusCode::NOT_FOUND);
        app.store().put_checkpoint(&row(0)).await.unwrap();
        assert_eq!(token(&app, "bob").await, None);
        app.store().set_checkpoint_public(&row(0).path, true).await.unwrap();
        let (own, bobs) = (token(&app, &owner().0).await.unwrap(), token(&app, "bob").await.unwrap());
        for link in [&own, &bobs] {
            assert_eq!(read(&app, link, "weights").await.unwrap(), b"old");
            assert!(read(&app, link, ARCHIVE).await.unwrap().starts_with(b"weights\0"));
        }
        app.store().set_checkpoint_public(&row(0).path, false).await.unwrap();
        assert_eq!(read(&app, &own, "weights").await.unwrap(), b"old");
        assert_eq!(
            (read(&app, &bobs, "weights").await, read(&app, &bobs, ARCHIVE).await),
            (gone.clone(), gone.clone())
        );
        app.store().set_checkpoint_public(&row(0).path, true).await.unwrap();
        assert_eq!(read(&app, &bobs, "weights").await.unwrap(), b"old");
        app.store().put_checkpoint(&row(1)).await.unwrap();
        for link in [&own, &bobs] {
            assert_eq!(
                (read(&app, link, "weights").await, read(&app, link, ARCHIVE).await),
                (gone.clone(), gone.clone())
            );
        }
        let again = token(&app, "bob").await.unwrap();
        assert_eq!(read(&app, &again, "weights").await.unwrap(), b"new", "it is published still");
    }

    #[tokio::test]
    async fn whatever_is_sent_of_a_checkpoint_is_noted() {
        let (app, _engine) = testing::app().await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("weights"), "0123456789").unwrap();
        let row = store::testing::checkpoint("tinker://s:train:0/weights/a", &owner().0);
        app.store().put_checkpoint(&CheckpointRow { dir: dir.path().into(), ..row }).await.unwrap();
        let token = token(&app, &owner().0).await.unwrap();
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
