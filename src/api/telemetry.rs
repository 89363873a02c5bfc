//! What clients report of themselves: kept as it came, within bounds (protocol ch. 16).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use tinderbox_client::types::service::{TelemetryRequest, TelemetryResponse};

use crate::ids::{OwnerId, SessionId};

use super::auth::Owner;
use super::body::JsonBody;
use super::error::ApiResult;
use super::state::App;

/// Bytes of an account's reports that are kept within a minute. A client sends a few kilobytes in ten seconds.
const BYTES_PER_MINUTE: usize = 4 << 20;

const MINUTE: Duration = Duration::from_secs(60);

/// Accepted whatever it is: a client waits for that at its end. Kept is what tells of a session of the caller's, or of
/// none.
pub async fn telemetry(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(report): JsonBody<TelemetryRequest>,
) -> ApiResult<Json<TelemetryResponse>> {
    let sessionless = report.session_id.starts_with("sessionless-");
    if !report.events.is_empty()
        && (sessionless || app.session(&owner, &SessionId(report.session_id.clone())).await.is_ok())
    {
        let body = report.events.as_str();
        if app.reports().take(&owner, body.len(), Instant::now()) {
            app.store().insert_telemetry(&owner, &report.session_id, body).await?;
        }
    }
    Ok(Json(TelemetryResponse {}))
}

/// How much each account reported in its present minute.
#[derive(Default)]
pub struct Reports(Mutex<HashMap<OwnerId, (Instant, usize)>>);

impl Reports {
    /// Whether there is room for `bytes` more.
    fn take(&self, owner: &OwnerId, bytes: usize, now: Instant) -> bool {
        let mut minutes = self.0.lock().expect("no code panics while it holds the counts");
        minutes.retain(|_, (begun, _)| now.duration_since(*begun) < MINUTE);
        let (_, taken) = minutes.entry(owner.clone()).or_insert((now, 0));
        if *taken + bytes > BYTES_PER_MINUTE {
            return false;
        }
        *taken += bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_so_many_bytes_a_minute() {
        let (reports, now) = (Reports::default(), Instant::now());
        let (a, b) = (OwnerId("a".into()), OwnerId("b".into()));
        assert!(reports.take(&a, BYTES_PER_MINUTE, now));
        assert!(!reports.take(&a, 1, now));
        assert!(reports.take(&b, 1, now));
        assert!(reports.take(&a, 1, now + MINUTE));
    }
}
