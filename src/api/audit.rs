//! The audit log of the asking account (protocol §7.19).

use axum::Json;
use axum::extract::State;
use chrono::Utc;
use tinderbox_client::types::audit::{AuditLogEntry, AuditLogResponse, AuditQuery};

use crate::error::{Error, Result};
use crate::store::audit::AuditRow;
use crate::validate::billing::day;

use super::auth::Owner;
use super::error::ApiResult;
use super::query::QueryOf;
use super::state::App;

/// Entries of one answer; of a day with more, the last ones.
const ENTRIES: u64 = 10_000;

/// Which events each type means, by the beginning of their names. There are no projects' and teams' events here.
const TYPES: [(&str, &str); 7] = [
    ("all", ""),
    ("checkpoints", "checkpoint_"),
    ("organizations", "key_"),
    ("sessions", "session_"),
    ("runs", "run_"),
    ("projects", "project_"),
    ("teams", "team_"),
];

/// What happened on one day, midnight to midnight UTC, oldest first; today when no day is named.
pub async fn log(
    State(app): State<App>,
    Owner(owner): Owner,
    QueryOf(q): QueryOf<AuditQuery>,
) -> ApiResult<Json<AuditLogResponse>> {
    let prefix = prefix(&q.event_type)?;
    let today = || Utc::now().date_naive().to_string();
    let (from, until) = day(&q.day.unwrap_or_else(today))?;
    // What was done before this request is to be seen in its answer.
    app.store().write_noted().await?;
    let rows = app.store().audit(&owner, prefix, from, until, ENTRIES).await?;
    Ok(Json(AuditLogResponse { entries: rows.into_iter().map(entry).collect() }))
}

fn prefix(event_type: &str) -> Result<&'static str> {
    let found = TYPES.iter().find(|(name, _)| *name == event_type);
    found.map(|(_, prefix)| *prefix).ok_or_else(|| {
        let known: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        Error::user(format!("event_type {event_type:?} must be one of {}", known.join(", ")))
    })
}

/// The older fields of an entry repeat what its details say.
fn entry(row: AuditRow) -> AuditLogEntry {
    let text = |name: &str| row.details.get(name).and_then(|v| v.as_str()).map(str::to_owned);
    let (model_id, tinker_path, purpose) = (text("model_id"), text("tinker_path"), text("purpose"));
    let of_checkpoint = row.event.starts_with("checkpoint_");
    AuditLogEntry {
        timestamp: row.at,
        model_id: model_id.filter(|_| of_checkpoint),
        tinker_path,
        purpose,
        event: row.event,
        event_details: row.details,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked() {
        assert_eq!((prefix("all").unwrap(), prefix("checkpoints").unwrap()), ("", "checkpoint_"));
        assert!(prefix("chequers").unwrap_err().message.contains("all, checkpoints"));
    }
}
