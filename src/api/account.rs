//! A key about itself: exchange it for a token, look at it, withdraw it (protocol §2.3, §2.5).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use chrono::Utc;
use serde::Serialize;
use serde_json::{Value, json};
use tinderbox_client::types::service::{ApiKeyDetails, ApiKeyResponse, AuthTokenResponse, OrgDetails, UserDetails};

use crate::config::quotas::Quotas;

use super::error::{ApiError, ApiResult};
use super::keys::{Caller, KeyRef};
use super::state::App;

/// A token for the presented key. One for a presented token ends with that.
pub async fn token(State(app): State<App>, caller: Caller) -> Json<AuthTokenResponse> {
    Json(AuthTokenResponse { jwt: app.keys().token(&caller, Utc::now()) })
}

/// A key and what its account may take.
#[derive(Serialize)]
pub struct Me {
    #[serde(flatten)]
    key: ApiKeyResponse,
    quotas: Quotas,
}

/// Ids of keys that are no rows: 0 without keys, else minus the number of the flag.
pub async fn me(State(app): State<App>, caller: Caller) -> Json<Me> {
    let (key_id, note) = match caller.key {
        KeyRef::Open => (0, "this server runs without keys"),
        KeyRef::Flag(number) => (-(number as i64), "given to the server with --api-key"),
        KeyRef::Row(id) => (id, ""),
    };
    let details = ApiKeyDetails {
        org_details: OrgDetails { name: caller.owner.0.clone() },
        user_details: UserDetails { email: caller.name.clone() },
    };
    let key = ApiKeyResponse { key_id, name: caller.name, note: note.into(), details };
    Json(Me { key, quotas: app.quotas(&caller.owner) })
}

/// Withdraws the presented key, or the key of the presented token.
pub async fn delete_me(State(app): State<App>, caller: Caller) -> ApiResult<Json<Value>> {
    let KeyRef::Row(id) = caller.key else {
        let why = match caller.key {
            KeyRef::Flag(_) => "this key was given to the server with --api-key: take it away there and restart",
            _ => "this server runs without keys: there is none to delete",
        };
        return Err(ApiError::new(StatusCode::FORBIDDEN, why));
    };
    app.store().revoke_keys(&[id], Utc::now()).await?;
    app.keys().refresh(app.store()).await?;
    app.store().note(Some(&caller.owner), "key_revoked", json!({ "key_id": id, "key": caller.name, "by": "api" }));
    tracing::info!(key = caller.name, id, "key revoked by its holder");
    Ok(Json(json!({})))
}
