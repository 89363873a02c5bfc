//! Uploading an adapter: start announces the files, each is sent to its link, finish makes a checkpoint of them.

use std::io::ErrorKind;
use std::path::Path as FilePath;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use chrono::Utc;
use serde_json::{Value, json};
use tinderbox_client::types::uploads::{
    ExternalWeightsUploadFinishRequest, ExternalWeightsUploadFinishResponse, ExternalWeightsUploadStartRequest,
    ExternalWeightsUploadStartResponse,
};
use tokio::io::AsyncWriteExt;

use crate::command::RunKind;
use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};
use crate::ids::{CheckpointKind, CheckpointPath, check_name};
use crate::store::checkpoints::CheckpointRow;
use crate::upload::adapter::{AdapterConfig, Base, adopt};
use crate::upload::{Upload, Wish};
use crate::validate::metadata::bounded;
use crate::validate::weights::ttl;

use super::arrival::{self, Arrival};
use super::auth::Owner;
use super::body::JsonBody;
use super::error::{ApiError, ApiResult};
use super::held::{Held, Place};
use super::state::App;
use super::transfers::api_url;

const DEFAULT_NAME: &str = "uploaded";

pub async fn start(
    State(app): State<App>,
    Owner(owner): Owner,
    headers: HeaderMap,
    JsonBody(r): JsonBody<ExternalWeightsUploadStartRequest>,
) -> ApiResult<Json<ExternalWeightsUploadStartResponse>> {
    let name = r.name.unwrap_or_else(|| DEFAULT_NAME.into());
    check_name(&name)?;
    bounded("project_id and user_metadata", &(&r.project_id, &r.user_metadata))?;
    let base_model = r.base_model.as_deref().map(|name| app.model(name).map(|m| m.name.clone())).transpose()?;
    let user_metadata = r.user_metadata.unwrap_or_default();
    let wish = Wish { name, base_model, ttl: ttl(r.ttl_seconds)?, project_id: r.project_id, user_metadata };
    // What it is to become has no run yet; only the bytes count.
    let size = r.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size_bytes));
    let place = CheckpointPath { run: Place::own(None).run(), kind: CheckpointKind::Training, name: wish.name.clone() };
    app.room_on_disk(&owner, &place, size).await?;
    app.futures().pace().admit(&owner, 1, 0)?;
    let files: Vec<_> = r.files.into_iter().map(|f| (f.name, f.size_bytes)).collect();
    let upload = app.uploads().start(&owner, &files, wish)?;
    let base = format!("{}/upload/{}", api_url(&app, &headers), app.links().seal("upload", &upload.id, upload.expires));
    let urls = upload.files().map(|file| (file.to_owned(), format!("{base}/{file}"))).collect();
    Ok(Json(ExternalWeightsUploadStartResponse { upload_id: upload.id.clone(), urls, expires: upload.expires }))
}

/// One file, whole; the token in the URL is the credential. A file may be sent again.
pub async fn put(
    State(app): State<App>,
    Path((token, file)): Path<(String, String)>,
    body: Body,
) -> ApiResult<Json<Value>> {
    let gone = || ApiError::new(StatusCode::NOT_FOUND, "this upload link is not valid, or no longer");
    let id = app.links().unseal("upload", &token, Utc::now()).ok_or_else(gone)?;
    let upload = app.uploads().get(&id)?;
    let size = upload.size_of(&file)?;
    let _turn = upload.transfers.acquire().await.map_err(|e| Error::server(e.to_string()))?;
    let (place, transfer) = upload.places(&file);
    // Removed when the transfer breaks off at whatever point.
    let transfer = tempfile::TempPath::try_from_path(transfer).map_err(Error::from)?;
    receive(body, &transfer, size, &file).await?;
    // No file changes while a checkpoint is made of them; after that its place is gone.
    let _outcome = upload.outcome.lock().await;
    tokio::fs::rename(&transfer, place).await.map_err(|e| match e.kind() {
        ErrorKind::NotFound => over(&file),
        _ => e.into(),
    })?;
    Ok(Json(json!({ "size_bytes": size })))
}

/// Makes the checkpoint, in a run that holds it; a repeat gets the same one. An upload that does not fit is forgotten.
pub async fn finish(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<ExternalWeightsUploadFinishRequest>,
) -> ApiResult<Json<ExternalWeightsUploadFinishResponse>> {
    let upload = app.uploads().get(&r.upload_id)?;
    if upload.owner != owner {
        return Err(Error::not_found(format!("there is no upload {:?}", r.upload_id)).into());
    }
    let mut outcome = upload.outcome.lock().await;
    if let Some(path) = outcome.as_ref() {
        return Ok(Json(ExternalWeightsUploadFinishResponse { tinker_path: path.to_string() }));
    }
    upload.complete()?;
    let made = make(&app, &upload).await;
    match &made {
        Ok(_) => upload.remove_files(),
        Err(_) => app.uploads().abandon(&upload),
    }
    let path = outcome.insert(made?);
    Ok(Json(ExternalWeightsUploadFinishResponse { tinker_path: path.to_string() }))
}

async fn make(app: &App, upload: &Upload) -> Result<CheckpointPath> {
    let Wish { name, ttl, project_id, user_metadata, .. } = upload.wish.clone();
    let from = upload.complete()?.to_owned();
    let config = AdapterConfig::read(&from)?;
    let model = base_of(app, &config, upload.wish.base_model.as_deref())?.clone();
    let place = Place::own(project_id);
    let path = CheckpointPath { run: place.run(), kind: CheckpointKind::Training, name };
    let dir = app.new_checkpoint_dir(&path);
    let (to, base_model, max_rank) = (dir.clone(), model.name.clone(), app.limits().max_rank);
    let adopted =
        app.heavy(move || adopt(&config, &from, &to, &Base { name: &model.name, dir: &model.dir, max_rank })).await?;
    let (lora, size_bytes) = adopted?;
    let created_at = Utc::now();
    let checkpoint = CheckpointRow {
        path: path.clone(),
        owner: upload.owner.clone(),
        base_model,
        kind: RunKind::Lora(lora),
        dir: dir.clone(),
        size_bytes,
        created_at,
        expires_at: ttl.map(|ttl| created_at + ttl),
        public: false,
        user_metadata: user_metadata.clone(),
    };
    // Uploads may have been begun together, each when there was room for it alone.
    let _turn = app.copying().lock().await;
    let room = app.futures().check_disk(&checkpoint.owner, &checkpoint.path, size_bytes).await;
    room.inspect_err(|_| app.futures().discard(dir.clone()))?;
    let held = Held { place, checkpoint, origin: "an uploaded adapter".into(), run_metadata: user_metadata };
    app.list_held(held).await.inspect_err(|_| app.futures().discard(dir))?;
    Ok(path)
}

/// The base model asked for. An adapter may call it by a path of the machine it was trained on, but not by the name of
/// another model that is served here.
fn base_of<'a>(app: &'a App, config: &AdapterConfig, wanted: Option<&str>) -> Result<&'a ModelInfo> {
    let named = config.base_model.as_deref();
    let Some(wanted) = wanted else {
        let named = named.ok_or_else(|| Error::user("adapter_config.json names no base model; give base_model"))?;
        return app.model(named).map_err(|e| e.context("adapter_config.json: base_model_name_or_path"));
    };
    let model = app.model(wanted)?;
    match named.and_then(|named| app.engine().model(named)) {
        Some(other) if other.dir != model.dir => Err(Error::user(format!(
            "adapter_config.json: base_model_name_or_path is {:?}, which is another model than {wanted:?}",
            other.name
        ))),
        _ => Ok(model),
    }
}

fn over(file: &str) -> Error {
    Error::not_found(format!("{file}: the upload is finished or was given up"))
}

/// Exactly `size` bytes into a new file.
async fn receive(body: Body, path: &FilePath, size: u64, name: &str) -> ApiResult<()> {
    let mut file = tokio::fs::File::create_new(path).await.map_err(|_| over(name))?;
    let mut arrival = Arrival::new(name, body, arrival::LARGE);
    let mut received = 0u64;
    while let Some(frame) = arrival.next().await? {
        let frame =
            frame.map_err(|e| Error::user(format!("{name}: the body broke off after {received} bytes: {e}")))?;
        received += frame.len() as u64;
        if received > size {
            let detail = format!("{name} is longer than the {size} bytes that were announced");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        file.write_all(&frame).await.map_err(Error::from)?;
    }
    if received < size {
        return Err(Error::user(format!("{name} has {received} bytes; {size} were announced")).into());
    }
    file.sync_all().await.map_err(Error::from)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use crate::api::testing::{self, owner};
    use crate::ids::OwnerId;
    use axum::response::IntoResponse;
    use tinderbox_client::types::uploads::UploadFile;

    async fn started(app: &App, base_model: Option<&str>) -> ApiResult<ExternalWeightsUploadStartResponse> {
        let file = |name: &str, size_bytes| UploadFile { name: name.into(), size_bytes };
        let r = ExternalWeightsUploadStartRequest {
            files: vec![file("adapter_config.json", 4), file("adapter_model.safetensors", 4)],
            base_model: base_model.map(Into::into),
            ..Default::default()
        };
        Ok(start(State(app.clone()), Owner(owner()), HeaderMap::new(), JsonBody(r)).await?.0)
    }

    async fn send(app: &App, url: &str, body: impl Into<Body>) -> StatusCode {
        let mut parts = url.rsplit('/').map(str::to_owned);
        let (file, token) = (parts.next().unwrap(), parts.next().unwrap());
        match put(State(app.clone()), Path((token, file)), body.into()).await {
            Ok(_) => StatusCode::OK,
            Err(e) => e.into_response().status(),
        }
    }

    async fn finished(app: &App, owner: OwnerId, id: &str) -> String {
        let r = ExternalWeightsUploadFinishRequest { upload_id: id.into() };
        let e = finish(State(app.clone()), Owner(owner), JsonBody(r)).await.unwrap_err();
        format!("{e:?}")
    }

    #[tokio::test]
    async fn files_arrive_whole_or_not_at_all() {
        let (app, _engine) = testing::app().await;
        let upload = started(&app, None).await.unwrap();
        let url = &upload.urls["adapter_config.json"];
        assert_eq!(send(&app, url, "12345").await, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(send(&app, url, "123").await, StatusCode::BAD_REQUEST);
        assert_eq!(send(&app, &url.replace("upload~", "upload~0"), "{}  ").await, StatusCode::NOT_FOUND);
        assert_eq!(send(&app, &format!("{url}x"), "{}  ").await, StatusCode::NOT_FOUND);
        let e = finished(&app, owner(), &upload.upload_id).await;
        assert!(e.contains("not arrived yet: adapter_config.json, adapter_model.safetensors"), "{e}");
        assert_eq!(send(&app, url, "[]  ").await, StatusCode::OK);
        assert_eq!(send(&app, url, "{}  ").await, StatusCode::OK, "sent again");
        assert_eq!(send(&app, &upload.urls["adapter_model.safetensors"], "abcd").await, StatusCode::OK);
        let e = finished(&app, OwnerId("other".into()), &upload.upload_id).await;
        assert!(e.contains("there is no upload"), "{e}");
        let e = finished(&app, owner(), &upload.upload_id).await;
        assert!(e.contains("peft_type is null"), "{e}");
        let e = finished(&app, owner(), &upload.upload_id).await;
        assert!(e.contains("there is no upload"), "what does not fit is gone: {e}");
        assert!(started(&app, Some("huge")).await.is_err(), "an unknown base model is refused at the start");
    }

    #[tokio::test]
    async fn what_still_arrives_when_the_upload_ends_is_refused() {
        let (app, _engine) = testing::app().await;
        let upload = started(&app, None).await.unwrap();
        let url = &upload.urls["adapter_config.json"];
        assert_eq!(send(&app, url, "{}  ").await, StatusCode::OK);
        assert_eq!(send(&app, &upload.urls["adapter_model.safetensors"], "abcd").await, StatusCode::OK);
        let (ends, id) = (app.clone(), upload.upload_id.clone());
        let first = futures_util::stream::iter([Ok::<_, std::convert::Infallible>("{} ")]);
        let rest = futures_util::stream::once(async move {
            assert!(finished(&ends, owner(), &id).await.contains("peft_type is null"));
            Ok(" ")
        });
        assert_eq!(send(&app, url, Body::from_stream(first.chain(rest))).await, StatusCode::NOT_FOUND);
    }
}
