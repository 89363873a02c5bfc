//! Usage by hour and stored bytes for administrators' tools (protocol §6.2, §7.19). Each account sees its own.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use chrono::{TimeDelta, Utc};
use tinderbox_client::types::billing::{
    BillingEventInfo, BillingUsageEvent, BillingUsageQuery, BillingUsageResponse, BillingUsageSession,
    CheckpointStorageItem, CheckpointStorageQuery, CheckpointStorageResponse,
};

use crate::error::Result;
use crate::ids::SessionId;
use crate::store::usage::{Counters, UsageFilter};
use crate::validate::billing::window;

use super::auth::Owner;
use super::error::ApiResult;
use super::query::QueryOf;
use super::state::App;

/// A gigabyte, as storage is measured.
pub const GIGABYTE: f64 = 1e9;

/// Counted up to this moment.
pub async fn events(
    State(app): State<App>,
    Owner(owner): Owner,
    QueryOf(q): QueryOf<BillingUsageQuery>,
) -> ApiResult<Json<BillingUsageResponse>> {
    let (from, until) = window(q.starting_on.as_deref(), q.ending_before.as_deref(), Utc::now())?;
    app.futures().usage().flush(app.store(), Utc::now()).await?;
    let mut response = BillingUsageResponse::default();
    let mut projects = BTreeMap::new();
    for (key, counters) in app.store().usage_by_hour(&UsageFilter::all(&owner, from, until)).await? {
        if let Some(id) = &key.session
            && !response.sessions.contains_key(&id.0)
        {
            let (metadata, project) = session_and_project(&app, id).await?;
            response.sessions.insert(id.0.clone(), metadata);
            projects.insert(id.clone(), project);
        }
        let project_id = key.session.as_ref().and_then(|id| projects.get(id).cloned().flatten());
        response.data.extend(kinds(&counters).into_iter().map(|event_info| BillingUsageEvent {
            bucket_start: key.hour,
            bucket_end: key.hour + TimeDelta::hours(1),
            base_model: Some(key.base_model.clone()),
            user_id: Some(owner.0.clone()),
            session_id: key.session.as_ref().map(|id| id.0.clone()),
            project_id: project_id.clone(),
            event_info,
        }));
    }
    response.data.sort_by_key(|event| (event.bucket_start, std::cmp::Reverse(token_count(&event.event_info))));
    Ok(Json(response))
}

/// Live checkpoints of every kind, by project.
pub async fn current_storage(
    State(app): State<App>,
    Owner(owner): Owner,
    QueryOf(q): QueryOf<CheckpointStorageQuery>,
) -> ApiResult<Json<CheckpointStorageResponse>> {
    let projects = app.store().storage_by_project(&owner, q.project_id.as_deref()).await?;
    let item = |p: crate::store::storage::ProjectStorage| CheckpointStorageItem {
        project_id: p.project_id,
        org_user_urn: Some(owner.0.clone()),
        checkpoint_count: p.checkpoints,
        size_bytes: p.size_bytes,
        size_gigabytes: p.size_bytes as f64 / GIGABYTE,
    };
    Ok(Json(CheckpointStorageResponse { data: projects.into_iter().map(item).collect() }))
}

/// What was attached to the session, and its project as of now.
async fn session_and_project(app: &App, id: &SessionId) -> Result<(BillingUsageSession, Option<String>)> {
    let row = app.store().session(id).await?;
    let (metadata, project) = row.map(|r| (r.user_metadata, r.project_id)).unwrap_or_default();
    Ok((BillingUsageSession { user_metadata: Some(metadata).filter(|m| !m.is_empty()) }, project))
}

/// The kinds of which there was some.
fn kinds(c: &Counters) -> Vec<BillingEventInfo> {
    let training = c.forward_tokens + c.train_tokens;
    let all = [
        (training, BillingEventInfo::Training { token_count: training }),
        (c.prefill_tokens, BillingEventInfo::SamplingPrefill { cached: false, token_count: c.prefill_tokens }),
        (
            c.cached_prefill_tokens,
            BillingEventInfo::SamplingPrefill { cached: true, token_count: c.cached_prefill_tokens },
        ),
        (c.sampled_tokens, BillingEventInfo::SamplingSample { token_count: c.sampled_tokens }),
        (c.checkpoints, BillingEventInfo::Checkpoint { count: c.checkpoints }),
        (
            c.storage_byte_seconds,
            BillingEventInfo::Storage { free: false, gigabyte_hours: gigabyte_hours(c.storage_byte_seconds) },
        ),
    ];
    all.into_iter().filter(|(amount, _)| *amount > 0).map(|(_, info)| info).collect()
}

pub fn gigabyte_hours(byte_seconds: u64) -> f64 {
    byte_seconds as f64 / GIGABYTE / 3600.0
}

fn token_count(info: &BillingEventInfo) -> u64 {
    match info {
        BillingEventInfo::Training { token_count }
        | BillingEventInfo::SamplingPrefill { token_count, .. }
        | BillingEventInfo::SamplingSample { token_count } => *token_count,
        BillingEventInfo::Checkpoint { .. } | BillingEventInfo::Storage { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;

    use crate::accounts::usage::{Spender, Work, hour_of};
    use crate::api::testing::{self, owner};
    use crate::ids::OwnerId;

    fn query(hours_back: i64) -> QueryOf<BillingUsageQuery> {
        let hour = hour_of(Utc::now());
        let text = |at: DateTime<Utc>| Some(at.to_rfc3339());
        QueryOf(BillingUsageQuery {
            starting_on: text(hour - TimeDelta::hours(hours_back)),
            ending_before: text(hour + TimeDelta::hours(1)),
        })
    }

    #[tokio::test]
    async fn events_are_the_accounts_own_and_of_each_kind() {
        let (app, _engine) = testing::app().await;
        let session = testing::session(&app, Utc::now()).await;
        app.store().set_session_project(&session.id, "p").await.unwrap();
        let spender = |owner: OwnerId, base: &str| Spender {
            owner,
            session: Some(session.id.clone()),
            work: Work::Run(session.id.model(0)),
            base_model: base.into(),
        };
        let counters = Counters {
            forward_tokens: 2,
            train_tokens: 3,
            prefill_tokens: 50,
            sampled_tokens: 7,
            checkpoints: 1,
            ..Counters::default()
        };
        app.futures().usage().add(spender(owner(), "m"), &counters);
        app.futures().usage().add(spender(OwnerId("other".into()), "m"), &counters);
        let Json(told) = events(State(app.clone()), Owner(owner()), query(1)).await.unwrap();
        let infos: Vec<_> = told.data.iter().map(|e| e.event_info).collect();
        assert_eq!(
            infos,
            [
                BillingEventInfo::SamplingPrefill { cached: false, token_count: 50 },
                BillingEventInfo::SamplingSample { token_count: 7 },
                BillingEventInfo::Training { token_count: 5 },
                BillingEventInfo::Checkpoint { count: 1 },
            ]
        );
        assert!(told.data.iter().all(|e| e.project_id.as_deref() == Some("p") && e.user_id == Some(owner().0)));
        assert_eq!(told.sessions.keys().collect::<Vec<_>>(), [&session.id.0]);
        let stranger = Owner(OwnerId("stranger".into()));
        let Json(none) = events(State(app.clone()), stranger, query(1)).await.unwrap();
        assert_eq!(none, BillingUsageResponse::default());
        assert!(events(State(app), Owner(owner()), query(14 * 24)).await.is_err(), "an hour more than 14 days");
    }
}
