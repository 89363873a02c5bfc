//! Copies of checkpoints: a new run of the caller's holds one, on the same files (protocol §7.16).

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use chrono::Utc;
use tinderbox_client::types::checkpoints::{CopyWeightsRequest, CopyWeightsResponse};

use crate::error::{Error, Result};
use crate::futures::issue::Key;
use crate::futures::meaning;
use crate::ids::{CheckpointPath, OwnerId, SessionId};
use crate::store::Metadata;
use crate::store::checkpoints::CheckpointRow;
use crate::store::copies::CopyRow;
use crate::validate::metadata::bounded;
use crate::validate::weights::ttl;

use super::auth::Owner;
use super::body::JsonBody;
use super::checkpoints::audit_details;
use super::error::ApiResult;
use super::headers::text;
use super::held::{Held, Place};
use super::state::App;

const MAX_KEY: usize = 255;

/// A repeat under the same `X-Idempotency-Key` gets the same copy.
pub async fn copy_weights(
    State(app): State<App>,
    Owner(owner): Owner,
    headers: HeaderMap,
    JsonBody(r): JsonBody<CopyWeightsRequest>,
) -> ApiResult<Json<CopyWeightsResponse>> {
    let source: CheckpointPath = r.source_path.parse()?;
    let key = text(&headers, "x-idempotency-key");
    if key.is_some_and(|key| key.len() > MAX_KEY) {
        return Err(Error::user(format!("X-Idempotency-Key is longer than {MAX_KEY} characters")).into());
    }
    let request = serde_json::to_string(&CopyWeightsRequest { weights_access_token: None, ..r.clone() })
        .map_err(|e| Error::server(e.to_string()))?;
    // One at a time, so that a repeat finds what the first one made.
    let _turn = app.copying().lock().await;
    if let Some(key) = key
        && let Some(made) = app.store().copy(&owner, key).await?
    {
        if made.request != request {
            return Err(Error::user(format!("X-Idempotency-Key {key} was used by a different request")).into());
        }
        return Ok(Json(CopyWeightsResponse { tinker_path: made.path.to_string() }));
    }
    app.futures().pace().admit(&owner, 1, 0)?;
    let token = text(&headers, "x-tinker-weights-access-token");
    let token = token.or(r.weights_access_token.as_deref());
    let path = copy(&app, &owner, (&source, token), &r).await?;
    app.store().note(Some(&owner), "checkpoint_copied", audit_details(&path));
    if let Some(key) = key {
        app.store().insert_copy(&owner, key, &CopyRow { request, path: path.clone() }).await?;
    }
    Ok(Json(CopyWeightsResponse { tinker_path: path.to_string() }))
}

/// The source comes with the token that may open it.
async fn copy(
    app: &App,
    owner: &OwnerId,
    (source, token): (&CheckpointPath, Option<&str>),
    r: &CopyWeightsRequest,
) -> ApiResult<CheckpointPath> {
    let ttl = ttl(r.ttl_seconds)?;
    let place = place(app, owner, r).await?;
    // Whether the caller may read the source is decided here and nowhere else.
    let original = app.readable_with(owner, token, source).await?;
    let path = CheckpointPath { run: place.run(), kind: source.kind, name: source.name.clone() };
    app.room_on_disk(owner, &path, original.size_bytes).await?;
    let (from, dir) = (original.dir.clone(), app.new_checkpoint_dir(&path));
    let to = dir.clone();
    app.heavy(move || crate::checkpoint::share(&from, &to)).await??;
    let created_at = Utc::now();
    let checkpoint = CheckpointRow {
        path: path.clone(),
        owner: owner.clone(),
        dir: dir.clone(),
        created_at,
        expires_at: ttl.map(|ttl| created_at + ttl),
        public: false,
        ..original
    };
    // What its owner noted on the original run is theirs.
    let run = app.store().run(&source.run).await?.filter(|run| run.owner == *owner);
    let run_metadata = run.map_or_else(Metadata::new, |run| run.user_metadata);
    let held = Held { place, checkpoint, origin: format!("a copy of {source}"), run_metadata };
    app.list_held(held).await.inspect_err(|_| app.futures().discard(dir))?;
    Ok(path)
}

async fn place(app: &App, owner: &OwnerId, r: &CopyWeightsRequest) -> Result<Place> {
    match (&r.destination_project_id, &r.session_id, r.model_seq_id) {
        (Some(project), None, None) => {
            bounded("destination_project_id", project)?;
            Ok(Place::own(Some(project.clone())))
        }
        (None, Some(session), Some(model_seq)) => {
            let session = SessionId(session.clone());
            app.open_session(owner, &session).await?;
            let place = Place::Slot { session: session.clone(), model_seq };
            let key = Key::Creation { session, model_seq };
            let taken = app.futures().find(&key, meaning::of_request("copy_weights", r))?.is_some();
            if taken || app.store().run(&place.run()).await?.is_some() {
                return Err(Error::user(format!("{key} is taken; take the next model_seq_id")));
            }
            Ok(place)
        }
        _ => Err(Error::user("give either destination_project_id, or session_id and model_seq_id")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::config::quotas::Quotas;
    use crate::store::testing::checkpoint;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    /// An app with a checkpoint of `owner` whose only file says "x".
    async fn app_with_checkpoint() -> (App, CheckpointRow) {
        let (app, _engine) = testing::app().await;
        let path: CheckpointPath = "tinker://s:train:0/sampler_weights/a".parse().unwrap();
        let dir = app.new_checkpoint_dir(&path);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("file"), "x").unwrap();
        let row = CheckpointRow {
            dir,
            expires_at: Some(Utc::now() + chrono::TimeDelta::hours(2)),
            user_metadata: Metadata::from([("k".into(), "v".into())]),
            ..checkpoint(&path.to_string(), &owner().0)
        };
        app.store().put_checkpoint(&row).await.unwrap();
        (app, row)
    }

    async fn ask(app: &App, owner: OwnerId, key: &str, r: &CopyWeightsRequest) -> ApiResult<String> {
        let headers = HeaderMap::from_iter([("x-idempotency-key".parse().unwrap(), key.parse().unwrap())]);
        let copied = copy_weights(State(app.clone()), Owner(owner), headers, JsonBody(r.clone())).await?;
        Ok(copied.0.tinker_path)
    }

    fn into_project(row: &CheckpointRow) -> CopyWeightsRequest {
        CopyWeightsRequest {
            source_path: row.path.to_string(),
            destination_project_id: Some("p".into()),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn a_copy_has_its_own_run_and_the_same_files() {
        let (app, row) = app_with_checkpoint().await;
        let path: CheckpointPath = ask(&app, owner(), "k", &into_project(&row)).await.unwrap().parse().unwrap();
        let copy = app.store().checkpoint(&path).await.unwrap().unwrap();
        assert_eq!((path.kind, &*path.name, copy.expires_at, copy.public), (row.path.kind, "a", None, false));
        assert_eq!((&copy.user_metadata, copy.size_bytes), (&row.user_metadata, 1));
        assert_ne!(copy.dir, row.dir);
        std::fs::remove_dir_all(&row.dir).unwrap();
        assert_eq!(std::fs::read_to_string(copy.dir.join("file")).unwrap(), "x", "it outlives the original");
        let refused = app.run(&owner(), &path.run).await.err().unwrap();
        assert!(refused.message.contains("holds a copy of tinker://s:train:0/sampler_weights/a"), "{refused}");
        let session = app.store().run(&path.run).await.unwrap().unwrap().session;
        assert_eq!(app.store().session(&session).await.unwrap().unwrap().project_id.as_deref(), Some("p"));
        std::fs::remove_dir_all(app.checkpoints_dir()).unwrap();
    }

    #[tokio::test]
    async fn a_repeat_gets_the_same_copy_and_another_request_under_its_key_is_refused() {
        let (app, row) = app_with_checkpoint().await;
        let r = into_project(&row);
        let repeats: Vec<_> = (0..4)
            .map(|_| {
                let (app, r) = (app.clone(), r.clone());
                tokio::spawn(async move { ask(&app, owner(), "k", &r).await.unwrap() })
            })
            .collect();
        let mut paths = Vec::new();
        for repeat in repeats {
            paths.push(repeat.await.unwrap());
        }
        paths.dedup();
        assert_eq!(paths.len(), 1);
        assert_ne!(ask(&app, owner(), "other key", &r).await.unwrap(), paths[0]);
        let other = CopyWeightsRequest { ttl_seconds: Some(3600), ..r.clone() };
        assert!(ask(&app, owner(), "k", &other).await.is_err());
        assert!(ask(&app, owner(), "with ttl", &other).await.is_ok());
        std::fs::remove_dir_all(app.checkpoints_dir()).unwrap();
    }

    #[tokio::test]
    async fn a_copy_beyond_the_disk_quota_is_forbidden() {
        let (app, row) = app_with_checkpoint().await;
        let with = |limit| Quotas { disk_bytes: Some(limit), ..Quotas::default() };
        app.futures().accounts().set(owner(), with(1));
        let e = ask(&app, owner(), "k", &into_project(&row)).await.unwrap_err();
        assert!(format!("{e:?}").contains("disk_bytes: limit 1, used 1"), "{e:?}");
        assert_eq!(e.into_response().status(), StatusCode::FORBIDDEN);
        app.futures().accounts().set(owner(), with(2));
        assert!(ask(&app, owner(), "k", &into_project(&row)).await.is_ok());
        std::fs::remove_dir_all(app.checkpoints_dir()).unwrap();
    }

    #[tokio::test]
    async fn only_what_can_be_read_is_copied_and_only_into_a_free_place() {
        let (app, row) = app_with_checkpoint().await;
        let stranger = OwnerId("other".into());
        let e = copy(&app, &stranger, (&row.path, None), &into_project(&row)).await.unwrap_err();
        assert_eq!(e.into_response().status(), StatusCode::NOT_FOUND);
        app.store().set_checkpoint_public(&row.path, true).await.unwrap();
        assert!(copy(&app, &stranger, (&row.path, None), &into_project(&row)).await.is_ok());
        let session = testing::session(&app, Utc::now()).await.id;
        let slot = CopyWeightsRequest {
            source_path: row.path.to_string(),
            session_id: Some(session.0.clone()),
            model_seq_id: Some(3),
            ..Default::default()
        };
        assert_eq!(copy(&app, &owner(), (&row.path, None), &slot).await.unwrap().run, session.model(3));
        let e = copy(&app, &owner(), (&row.path, None), &slot).await.unwrap_err();
        assert!(format!("{e:?}").contains("model_seq_id 3"), "{e:?}");
        assert!(copy(&app, &stranger, (&row.path, None), &slot).await.is_err());
        let nowhere = CopyWeightsRequest { source_path: row.path.to_string(), ..Default::default() };
        assert!(copy(&app, &owner(), (&row.path, None), &nowhere).await.is_err());
        std::fs::remove_dir_all(app.checkpoints_dir()).unwrap();
    }
}
