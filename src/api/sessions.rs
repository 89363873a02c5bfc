//! Sessions: create, keep alive, finish, look up (protocol ch. 3, §7.17).

use axum::Json;
use axum::extract::{Path, State};
use chrono::Utc;
use serde_json::{Value, json};
use tinderbox_client::types::checkpoints::RunsQuery;
use tinderbox_client::types::sessions::{
    AssignProjectRequest, CreateSessionRequest, CreateSessionResponse, FinishSessionRequest, GetSessionResponse,
    ListSessionsResponse, SessionHeartbeatRequest, SessionHeartbeatResponse,
};

use crate::ids::SessionId;
use crate::store::sessions::{Finish, SessionRow};
use crate::validate::metadata::bounded;
use crate::validate::sdk_version::supported;

use super::auth::Owner;
use super::body::{JsonBody, OptionalBody};
use super::error::{ApiError, ApiResult};
use super::query::{QueryOf, page};
use super::state::App;

pub async fn create(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<CreateSessionRequest>,
) -> ApiResult<Json<CreateSessionResponse>> {
    supported(&r.sdk_version)?;
    bounded("tags", &r.tags)?;
    bounded("user_metadata", &r.user_metadata)?;
    bounded("sdk_version, project_id and display_name", &(&r.sdk_version, &r.project_id, &r.display_name))?;
    app.futures().pace().admit(&owner, 1, 0)?;
    let now = Utc::now();
    let row = SessionRow {
        id: SessionId::random(),
        owner,
        created_at: now,
        last_heartbeat_at: now,
        tags: r.tags,
        user_metadata: r.user_metadata.unwrap_or_default(),
        sdk_version: r.sdk_version,
        project_id: r.project_id,
        display_name: r.display_name,
        finished: None,
    };
    app.store().insert_session(&row).await?;
    app.store().note(
        Some(&row.owner),
        "session_created",
        json!({ "session_id": row.id.0, "sdk_version": row.sdk_version }),
    );
    tracing::info!(session = %row.id, owner = %row.owner, sdk = row.sdk_version, "session created");
    Ok(Json(CreateSessionResponse { session_id: row.id.0, ..CreateSessionResponse::default() }))
}

/// 410 stops a client's heartbeats for good, so it is sent only after `finish`.
pub async fn heartbeat(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<SessionHeartbeatRequest>,
) -> ApiResult<Json<SessionHeartbeatResponse>> {
    let id = SessionId(r.session_id);
    if app.session(&owner, &id).await?.finished.is_some() {
        return Err(ApiError::gone(format!("session {id} is finished")));
    }
    app.store().heartbeat_session(&id, Utc::now()).await?;
    Ok(Json(SessionHeartbeatResponse {}))
}

/// The first reason stays; a repeat is harmless.
pub async fn finish(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
    OptionalBody(r): OptionalBody<FinishSessionRequest>,
) -> ApiResult<Json<Value>> {
    let session = app.session(&owner, &SessionId(id)).await?;
    bounded("detail", &r.detail)?;
    if session.finished.is_none() {
        let finish = Finish { at: Utc::now(), reason: r.reason.word().into(), detail: r.detail };
        app.end_session(&session, finish).await?;
    }
    Ok(Json(json!({})))
}

pub async fn list(
    State(app): State<App>,
    Owner(owner): Owner,
    QueryOf(q): QueryOf<RunsQuery>,
) -> ApiResult<Json<ListSessionsResponse>> {
    let (limit, offset) = page(q.limit, q.offset)?;
    let sessions = app.store().sessions(&owner, q.project_id.as_deref(), limit, offset).await?;
    Ok(Json(ListSessionsResponse { sessions: sessions.into_iter().map(|id| id.0).collect() }))
}

pub async fn get(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
) -> ApiResult<Json<GetSessionResponse>> {
    let session = app.session(&owner, &SessionId(id)).await?;
    let runs = app.store().session_runs(&session.id).await?;
    let samplers = app.store().session_samplers(&session.id).await?;
    Ok(Json(GetSessionResponse {
        training_run_ids: runs.into_iter().map(|id| id.0).collect(),
        sampler_ids: samplers.into_iter().map(|id| id.0).collect(),
        user_metadata: Some(session.user_metadata.clone()),
        display_name: session.display_name.clone(),
    }))
}

pub async fn set_project(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
    JsonBody(r): JsonBody<AssignProjectRequest>,
) -> ApiResult<Json<Value>> {
    let session = app.session(&owner, &SessionId(id)).await?;
    bounded("project_id", &r.project_id)?;
    app.store().set_session_project(&session.id, &r.project_id).await?;
    app.known().assign(&session, &r.project_id);
    Ok(Json(json!({})))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, StatusCode};
    use axum::response::IntoResponse;
    use tower::ServiceExt;

    use super::*;
    use crate::api::router;
    use crate::api::testing::{self, owner};
    use crate::config::quotas::Quotas;

    #[tokio::test]
    async fn a_session_is_finished_with_a_body_or_without() {
        let (app, _engine) = testing::app().await;
        let finish = async |body: &'static str| {
            let session = crate::store::testing::session(&SessionId::random().0, "local");
            app.store().insert_session(&session).await.unwrap();
            let request = Request::post(format!("/api/v1/sessions/{}/finish", session.id)).header("x-api-key", "tml-a");
            let response = router(app.clone()).oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
            let status = response.status();
            let text = to_bytes(response.into_body(), 1 << 16).await.unwrap();
            let row = app.store().session(&session.id).await.unwrap().unwrap();
            (status, String::from_utf8(text.to_vec()).unwrap(), row.finished.map(|f| f.reason))
        };
        for (body, reason) in [
            ("", "success"),
            ("{}", "success"),
            (r#"{"reason":"interrupted"}"#, "interrupted"),
            (r#"{"reason":{"type":"errored"},"detail":null}"#, "errored"),
        ] {
            assert_eq!(finish(body).await, (StatusCode::OK, "{}".into(), Some(reason.into())), "{body}");
        }
        let (status, text, reason) = finish(r#"{"reason":"done"}"#).await;
        assert_eq!((status, reason), (StatusCode::BAD_REQUEST, None));
        assert!(text.contains("reason is success, errored or interrupted"), "{text}");
    }

    #[tokio::test]
    async fn new_sessions_count_against_the_rate_of_requests_and_heartbeats_do_not() {
        let (app, _engine) = testing::app().await;
        app.futures().accounts().set(owner(), Quotas { requests_per_minute: Some(1), ..Quotas::default() });
        let request = || JsonBody(CreateSessionRequest { sdk_version: "0.38.0".into(), ..Default::default() });
        let made = create(State(app.clone()), Owner(owner()), request()).await.unwrap();
        let refused = create(State(app.clone()), Owner(owner()), request()).await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "60");
        for _ in 0..3 {
            let beat = SessionHeartbeatRequest { session_id: made.session_id.clone() };
            assert!(heartbeat(State(app.clone()), Owner(owner()), JsonBody(beat)).await.is_ok());
        }
    }
}
