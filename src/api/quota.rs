//! What an account may take, where requests come in. What passes by itself is 429, or waits; what the user has to free
//! first is 403, which clients do not repeat.

use axum::http::StatusCode;

use crate::accounts::runs::{LiveRun, TooMany};
use crate::config::quotas::Quotas;
use crate::error::{Category, Error};
use crate::ids::{CheckpointPath, OwnerId};
use crate::store::runs::RunRow;

use super::error::{ApiError, ApiResult};
use super::state::App;

impl App {
    /// The account's own quotas, and the server's defaults where those say nothing.
    pub fn quotas(&self, owner: &OwnerId) -> Quotas {
        self.futures().accounts().quotas(owner)
    }

    /// Notes a run that is about to be created, if the account may have one more.
    pub fn begin_run(&self, row: &RunRow) -> ApiResult<()> {
        let run =
            LiveRun { owner: row.owner.clone(), session: row.session.clone(), base_model: row.base_model.clone() };
        let limit = self.quotas(&row.owner).max_runs;
        let begun = self.futures().runs().begin(&row.id, run, limit);
        begun.map_err(|full| ApiError::new(StatusCode::FORBIDDEN, too_many_runs(&full)))
    }

    /// Refuses `more` bytes under this path when the account's disk quota has no room for them.
    pub async fn room_on_disk(&self, owner: &OwnerId, path: &CheckpointPath, more: u64) -> ApiResult<()> {
        self.futures().check_disk(owner, path, more).await.map_err(refused)
    }
}

/// Sessions that a refusal names at most.
const NAMED: usize = 3;

fn too_many_runs(full: &TooMany) -> String {
    let TooMany { limit, used, sessions } = full;
    let mut named = sessions.iter().take(NAMED).map(|id| id.0.as_str()).collect::<Vec<_>>().join(", ");
    if sessions.len() > NAMED {
        named.push_str(&format!(" and {} more", sessions.len() - NAMED));
    }
    format!(
        "quota max_runs: limit {limit}, used {used}; to free runs, finish a session that holds them (POST \
         /api/v1/sessions/ID/finish with your key and no body, which clients do when they end): {named}"
    )
}

/// The answer to a request that a quota does not allow until its user frees something.
pub fn refused(e: Error) -> ApiError {
    match e.category {
        Category::User => ApiError::new(StatusCode::FORBIDDEN, e.message),
        Category::NotFound | Category::Server => e.into(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use axum::response::IntoResponse;
    use chrono::Utc;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;
    use crate::api::router;
    use crate::api::testing::{self, owner};
    use crate::ids::SessionId;
    use crate::store::testing::run;

    #[tokio::test]
    async fn one_run_too_many_is_refused_until_one_ends() {
        let (app, _engine) = testing::app().await;
        app.futures().accounts().set(owner(), Quotas { max_runs: Some(1), ..Quotas::default() });
        let session = testing::session(&app, Utc::now()).await;
        let row = |n| run(&session.id.model(n).0, &owner().0);
        assert!(app.begin_run(&row(0)).is_ok());
        let others = run("of-another:train:0", "other");
        assert!(app.begin_run(&others).is_ok());
        let refused = app.begin_run(&row(1)).unwrap_err();
        let response = refused.into_response();
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("max_runs: limit 1, used 1; to free runs, finish a session"), "{text}");
        assert!(text.contains(&format!(
            "/finish with your key and no body, which clients do when they end): {}\"",
            session.id
        )));
        app.futures().unload(row(0).owner, session.id.model(0));
        assert!(app.begin_run(&row(1)).is_ok());
    }

    #[tokio::test]
    async fn whatever_makes_something_at_once_asks_for_the_rate_of_requests() {
        let (app, _engine) = testing::app().await;
        let local = OwnerId("local".into());
        app.futures().accounts().set(local.clone(), Quotas { requests_per_minute: Some(1), ..Quotas::default() });
        let session = crate::store::testing::session(&SessionId::random().0, &local.0);
        app.store().insert_session(&session).await.unwrap();
        let ask = async |path: &str, body: serde_json::Value| {
            let request = Request::post(path).header("x-api-key", "tml-a").body(Body::from(body.to_string())).unwrap();
            let response = router(app.clone()).oneshot(request).await.unwrap();
            let status = response.status();
            let text = to_bytes(response.into_body(), 1 << 16).await.unwrap();
            (status, String::from_utf8(text.to_vec()).unwrap())
        };
        let session = &session.id.0;
        let new_session = || json!({"sdk_version": "0.38.0"});
        assert_eq!(ask("/api/v1/create_session", new_session()).await.0, StatusCode::OK);
        let file = |name| json!({"name": name, "size_bytes": 1});
        for (path, body) in [
            ("/api/v1/create_session", new_session()),
            (
                "/api/v1/create_sampling_session",
                json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}),
            ),
            (
                "/api/v1/create_custom_loss",
                json!({"session_id": session, "custom_loss_seq_id": 0, "name": "f", "inputs": [],
                       "graph": {"format": 1, "nodes": []}}),
            ),
            (
                "/api/v1/copy_weights",
                json!({"source_path": "tinker://s:train:0/weights/a", "destination_project_id": "p"}),
            ),
            (
                "/api/v1/external_weights_upload_start",
                json!({"files": [file("adapter_config.json"), file("adapter_model.safetensors")]}),
            ),
            ("/v1/messages/count_tokens", json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}]})),
        ] {
            let (status, text) = ask(path, body).await;
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{path}: {text}");
            assert!(text.contains("quota requests_per_minute: limit 1, used 1"), "{path}: {text}");
        }
    }

    #[test]
    fn three_sessions_are_named_and_the_rest_is_counted() {
        let sessions = |n| (0..n).map(|i| SessionId(format!("s{i}"))).collect();
        let text = |n| too_many_runs(&TooMany { limit: 9, used: 9, sessions: sessions(n) });
        assert!(text(3).ends_with("when they end): s0, s1, s2"), "{}", text(3));
        assert!(text(5).ends_with("when they end): s0, s1, s2 and 2 more"), "{}", text(5));
    }
}
