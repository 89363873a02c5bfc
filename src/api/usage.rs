//! `GET /usage`: what an account took, by run, session and day, and what it stores now.

use axum::Json;
use axum::extract::State;
use chrono::{TimeDelta, Utc};
use tinderbox_client::types::usage::{StorageNow, StoredCheckpoint, UsageCounts, UsageQuery, UsageResponse, UsageRow};

use crate::error::Result;
use crate::ids::{ModelId, OwnerId, SessionId};
use crate::store::checkpoint_lists::Listed;
use crate::store::usage::{Counters, UsageFilter, UsageKey};
use crate::validate::billing::day;

use super::access::no_run;
use super::auth::Owner;
use super::billing::gigabyte_hours;
use super::error::ApiResult;
use super::query::QueryOf;
use super::state::App;

/// How far back it goes when no day is named.
const DAYS: i64 = 31;

/// Checkpoints listed; sums are of all of them.
const MAX_LISTED: u64 = 1000;

/// Counted up to this moment.
pub async fn usage(
    State(app): State<App>,
    Owner(owner): Owner,
    QueryOf(q): QueryOf<UsageQuery>,
) -> ApiResult<Json<UsageResponse>> {
    let (from, until) = match &q.day {
        Some(text) => day(text)?,
        None => (Utc::now() - TimeDelta::days(DAYS), Utc::now() + TimeDelta::hours(1)),
    };
    let (session, run) = (q.session_id.map(SessionId), q.run_id.map(ModelId));
    if let Some(id) = &session {
        app.session(&owner, id).await?;
    }
    app.futures().usage().flush(app.store(), Utc::now()).await?;
    let filter = UsageFilter { owner: owner.clone(), from, until, session, run };
    let rows = app.store().usage_by_day(&filter).await?;
    if let Some(run) = &filter.run
        && rows.is_empty()
    {
        // Somebody else's published weights may have been sampled; a run nobody here used is not found.
        app.known().run(app.store(), run).await?.filter(|r| r.owner == owner).ok_or_else(|| no_run(run))?;
    }
    let mut total = Counters::default();
    rows.iter().for_each(|(_, counters)| total += *counters);
    let data = rows.into_iter().map(|(key, counters)| row(key, &counters)).collect();
    let storage = storage(&app, &owner, filter.run.as_ref()).await?;
    Ok(Json(UsageResponse { total: counts(&total), data, storage }))
}

fn row(key: UsageKey, counters: &Counters) -> UsageRow {
    UsageRow {
        day: key.hour.date_naive(),
        session_id: key.session.map(|id| id.0),
        run_id: key.run.map(|id| id.0),
        sampler_id: key.sampler.map(|id| id.0),
        base_model: key.base_model,
        counts: counts(counters),
    }
}

fn counts(c: &Counters) -> UsageCounts {
    UsageCounts {
        forward_tokens: c.forward_tokens,
        training_tokens: c.train_tokens,
        prefill_tokens: c.prefill_tokens,
        cached_prefill_tokens: c.cached_prefill_tokens,
        sampled_tokens: c.sampled_tokens,
        checkpoints: c.checkpoints,
        storage_gigabyte_hours: gigabyte_hours(c.storage_byte_seconds),
        device_seconds: c.device_micros as f64 / 1e6,
    }
}

async fn storage(app: &App, owner: &OwnerId, run: Option<&ModelId>) -> Result<StorageNow> {
    let (rows, checkpoint_count, size_bytes) = match run {
        Some(run) => {
            let mut rows = app.store().run_checkpoints(run).await?;
            rows.retain(|row| row.owner == *owner);
            let (count, size) = (rows.len() as u64, rows.iter().map(|row| row.size_bytes).sum());
            rows.truncate(MAX_LISTED as usize);
            (rows, count, size)
        }
        None => {
            let of = Listed { owner, published: false, project_id: None };
            let page = app.store().checkpoints(of, MAX_LISTED, 0).await?;
            (page.rows, page.total, app.store().stored_bytes(owner, None).await?)
        }
    };
    let listed = |row: crate::store::checkpoints::CheckpointRow| StoredCheckpoint {
        tinker_path: row.path.to_string(),
        size_bytes: row.size_bytes,
        time: row.created_at,
        expires_at: row.expires_at,
    };
    Ok(StorageNow {
        checkpoint_count,
        size_bytes,
        checkpoints: rows.into_iter().map(listed).collect(),
        ephemeral_samplers: app.store().open_snapshots(owner, run).await?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::usage::{Spender, Work};
    use crate::api::testing::{self, owner};
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    #[tokio::test]
    async fn a_runs_usage_is_its_owners_and_of_the_day_asked_for() {
        let (app, _engine) = testing::app().await;
        let (run, other) = (testing::run(&app).await, testing::run(&app).await);
        let session = app.run(&owner(), &run).await.unwrap().row.session.clone();
        for (run, tokens) in [(&run, 5), (&other, 70)] {
            let spender = Spender {
                owner: owner(),
                session: Some(session.clone()),
                work: Work::Run(run.clone()),
                base_model: "tiny".into(),
            };
            let counters = Counters { train_tokens: tokens, device_micros: 1_500_000, ..Counters::default() };
            app.futures().usage().add(spender, &counters);
        }
        let ask = async |who: &str, run: Option<&ModelId>, day: Option<&str>| {
            let query = UsageQuery { run_id: run.map(|r| r.0.clone()), session_id: None, day: day.map(str::to_owned) };
            usage(State(app.clone()), Owner(OwnerId(who.into())), QueryOf(query)).await.map(|Json(r)| r)
        };
        let of_run = ask("me", Some(&run), None).await.unwrap();
        assert_eq!((of_run.total.training_tokens, of_run.total.device_seconds), (5, 1.5));
        assert_eq!(of_run.data[0].run_id.as_ref(), Some(&run.0));
        assert_eq!(ask("me", None, None).await.unwrap().total.training_tokens, 75);
        let today = Utc::now().date_naive().to_string();
        assert_eq!(ask("me", None, Some(&today)).await.unwrap().total.training_tokens, 75);
        assert_eq!(ask("me", None, Some("2001-01-01")).await.unwrap().total, UsageCounts::default());
        let status = |r: ApiResult<UsageResponse>| r.unwrap_err().into_response().status();
        assert_eq!(status(ask("other", Some(&run), None).await), StatusCode::NOT_FOUND);
        assert_eq!(status(ask("me", None, Some("today")).await), StatusCode::BAD_REQUEST);
    }
}
