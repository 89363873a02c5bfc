//! Checkpoint rows: list, publish, set their lifetime, delete (protocol §6.2, ch. 13).

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};
use tinderbox_client::types::checkpoints::{
    AccessScope, Checkpoint, CheckpointType, CheckpointsListResponse, CheckpointsQuery, Cursor, SetTtlRequest,
};

use crate::error::{Category, Error, Result};
use crate::ids::{CheckpointKind, CheckpointPath, ModelId, OwnerId, check_name};
use crate::store::checkpoint_lists::Listed;
use crate::store::checkpoints::CheckpointRow;
use crate::validate::sdk_version::number;
use crate::validate::weights::ttl;

use super::access::{no_checkpoint, no_run};
use super::auth::Owner;
use super::body::JsonBody;
use super::create::wire_name;
use super::error::ApiResult;
use super::headers::text;
use super::query::{QueryOf, page};
use super::state::App;

/// Run, kind and name, as they stand in the URL.
pub type Segments = Path<(String, String, String)>;

pub async fn list_of_run(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(run): Path<String>,
    headers: HeaderMap,
) -> ApiResult<Json<CheckpointsListResponse>> {
    let run = ModelId(run);
    app.store().run(&run).await?.filter(|r| r.owner == owner).ok_or_else(|| no_run(&run))?;
    let rows = app.store().run_checkpoints(&run).await?;
    Ok(Json(CheckpointsListResponse { checkpoints: visible(rows, &headers), cursor: None }))
}

/// Of all runs of this owner; `accessible` also what others published.
pub async fn list(
    State(app): State<App>,
    Owner(owner): Owner,
    QueryOf(q): QueryOf<CheckpointsQuery>,
    headers: HeaderMap,
) -> ApiResult<Json<CheckpointsListResponse>> {
    let (limit, offset) = page(q.limit, q.offset)?;
    let published = q.access_scope == AccessScope::Accessible;
    let of = Listed { owner: &owner, published, project_id: q.project_id.as_deref() };
    let page = app.store().checkpoints(of, limit, offset).await?;
    let cursor = Cursor { offset: q.offset, limit: q.limit, total_count: page.total as i64 };
    Ok(Json(CheckpointsListResponse { checkpoints: visible(page.rows, &headers), cursor: Some(cursor) }))
}

/// How long clients repeat a request whose answer they did not hear.
const REPEATS: TimeDelta = TimeDelta::minutes(10);

/// The row goes first: a directory that stays costs disk, a row without one would be a lie. Its files go a while later.
pub async fn delete(State(app): State<App>, Owner(owner): Owner, segments: Segments) -> ApiResult<Json<Value>> {
    let path = path(segments)?;
    let row = match app.owned(&owner, &path).await {
        Err(e) if e.category == Category::NotFound && deleted_before_restart(&app, &owner, &path).await? => {
            return Ok(Json(json!({})));
        }
        row => row?,
    };
    // First, since the process may be killed in between.
    app.store().note_deleted(&path, &owner, Utc::now()).await?;
    let dir = app.store().delete_checkpoint(&path).await?.ok_or_else(|| no_checkpoint(&path))?;
    tracing::debug!(target: "tinderbox::durability", moment = "delete", %path, "checkpoint deleted");
    app.futures().usage().let_go(&(&row).into(), Utc::now()).await;
    app.futures().discard(dir);
    app.store().note(Some(&owner), "checkpoint_deleted", audit_details(&path));
    Ok(Json(json!({})))
}

/// Whether an earlier process deleted it, and whoever asked it to may not have heard so.
async fn deleted_before_restart(app: &App, owner: &OwnerId, path: &CheckpointPath) -> Result<bool> {
    let since = app.started() - REPEATS;
    app.store().was_deleted(path, owner, (since, app.started())).await
}

pub async fn publish(State(app): State<App>, Owner(owner): Owner, segments: Segments) -> ApiResult<Json<Value>> {
    set_public(&app, &owner, path(segments)?, true).await
}

pub async fn unpublish(State(app): State<App>, Owner(owner): Owner, segments: Segments) -> ApiResult<Json<Value>> {
    set_public(&app, &owner, path(segments)?, false).await
}

async fn set_public(
    app: &App,
    owner: &crate::ids::OwnerId,
    path: CheckpointPath,
    public: bool,
) -> ApiResult<Json<Value>> {
    app.owned(owner, &path).await?;
    app.store().set_checkpoint_public(&path, public).await?;
    let event = if public { "checkpoint_published" } else { "checkpoint_unpublished" };
    app.store().note(Some(owner), event, audit_details(&path));
    Ok(Json(json!({})))
}

/// Seconds from now; an explicit null removes the expiry.
pub async fn set_ttl(
    State(app): State<App>,
    Owner(owner): Owner,
    segments: Segments,
    JsonBody(r): JsonBody<SetTtlRequest>,
) -> ApiResult<Json<Value>> {
    let path = path(segments)?;
    let seconds =
        r.ttl_seconds.ok_or_else(|| Error::user("ttl_seconds is missing: a number, or null for no expiry"))?;
    let ttl = ttl(seconds)?;
    app.owned(&owner, &path).await?;
    app.store().set_checkpoint_expiry(&path, ttl.map(|ttl| Utc::now() + ttl)).await?;
    let mut what = audit_details(&path);
    what["ttl_seconds"] = seconds.into();
    app.store().note(Some(&owner), "checkpoint_ttl_set", what);
    Ok(Json(json!({})))
}

/// The path a URL names. Malformed ones do not exist.
pub fn path(Path((run, kind, name)): Segments) -> Result<CheckpointPath> {
    let unknown = || Error::not_found(format!("there is no checkpoint {kind:?}/{name:?} of run {run:?}"));
    let parsed = CheckpointKind::from_segment(&kind).filter(|_| check_name(&name).is_ok());
    let kind = parsed.ok_or_else(unknown)?;
    Ok(CheckpointPath { run: ModelId(run), kind, name })
}

/// What the audit log says of a checkpoint.
pub fn audit_details(path: &CheckpointPath) -> Value {
    json!({ "tinker_path": path.to_string(), "model_id": path.run.0 })
}

pub fn wire_row(row: CheckpointRow) -> Checkpoint {
    Checkpoint {
        checkpoint_id: format!("{}/{}", row.path.kind.segment(), row.path.name),
        checkpoint_type: wire_type(row.path.kind),
        time: row.created_at,
        tinker_path: row.path.to_string(),
        size_bytes: Some(row.size_bytes),
        public: row.public,
        user_metadata: Some(row.user_metadata),
        expires_at: row.expires_at,
        base_model: Some(wire_name(&row.base_model, row.kind)),
    }
}

pub fn wire_type(kind: CheckpointKind) -> CheckpointType {
    match kind {
        CheckpointKind::Training => CheckpointType::Training,
        CheckpointKind::Sampler => CheckpointType::Sampler,
        CheckpointKind::External => CheckpointType::External,
    }
}

/// Clients before 0.28 fail on a row of type `external`.
pub fn visible(rows: Vec<CheckpointRow>, headers: &HeaderMap) -> Vec<Checkpoint> {
    let old = text(headers, "x-stainless-package-version").is_some_and(knows_no_external);
    rows.into_iter().filter(|r| !(old && r.path.kind == CheckpointKind::External)).map(wire_row).collect()
}

fn knows_no_external(version: &str) -> bool {
    number(version).is_some_and(|number| number < (0, 28))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_path_or_nothing() {
        let of = |kind: &str, name: &str| path(Path(("s:train:0".into(), kind.into(), name.into())));
        assert_eq!(of("weights", "a").unwrap().to_string(), "tinker://s:train:0/weights/a");
        for (kind, name) in [("wheels", "a"), ("weights", ".."), ("weights", "")] {
            assert_eq!(of(kind, name).unwrap_err().category, crate::error::Category::NotFound);
        }
    }

    #[test]
    fn versions_that_know_no_external_rows() {
        assert!(knows_no_external("0.27.1"));
        assert!(knows_no_external("0.4.1"));
        assert!(!knows_no_external("0.28.0"));
        assert!(!knows_no_external("1.0.0"));
        assert!(!knows_no_external(""));
    }
}
