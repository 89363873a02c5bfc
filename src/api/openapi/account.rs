//! Tag `account`: what a key says of itself, and what was done with it.

use serde_json::json;
use tinderbox_client::types::audit::{AuditLogResponse, AuditQuery};
use tinderbox_client::types::service::{ApiKeyResponse, AuthTokenResponse};

use super::examples::TIME;
use super::operation::{Operation, delete, get, post};

pub fn operations() -> Vec<Operation> {
    let details = json!({ "org_details": { "name": "my-lab" }, "user_details": { "email": "laptop" } });
    vec![
        post("/api/v1/auth/token", "auth_token")
            .says(
                "Exchange the key for a token",
                "Sent by every `ServiceClient` when the server's settings ask for it, and again before the token ends. \
                 The token is sent in `X-API-Key` like a key; `RestClient.whoami()` reads it.",
            )
            .gives::<AuthTokenResponse>("A signed token with a date of expiry.", json!({ "jwt": "eyJ…" })),
        get("/api/v1/auth/apikey/me", "get_api_key")
            .says("What is known of the key", "`tinker auth login`.")
            .gives::<ApiKeyResponse>(
                "The key's name and account, never the key.",
                json!({ "key_id": 1, "name": "laptop", "note": "", "details": details }),
            ),
        delete("/api/v1/auth/apikey/me", "delete_api_key")
            .says("Withdraw the key", "`tinker auth logout`. The key stops working at once.")
            .gives_nothing("The key is withdrawn.")
            .refuses(403, "The key is none of `tinderbox key create`: it can only be taken away where the server is started."),
        get("/api/v1/audit", "audit_log")
            .says(
                "What was done with the account's keys",
                "`AdminClient.get_audit_log()`, `tinker audit`. One day, midnight to midnight UTC, the oldest entry first.",
            )
            .query::<AuditQuery>()
            .gives::<AuditLogResponse>(
                "The day's entries.",
                json!({ "entries": [{ "timestamp": TIME, "event": "session_created", "event_details": {} }] }),
            ),
    ]
}
