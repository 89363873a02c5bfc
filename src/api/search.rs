//! Searching sessions and checkpoints: rows are read newest first and looked at one by one, page after page (protocol
//! §7.18).

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use tinderbox_client::types::search::{
    CheckpointSearchCursor, CheckpointSearchRequest, CheckpointSearchResponse, SearchOwner, SessionSearchCursor,
    SessionSearchRequest, SessionSearchResponse, SessionStatus, SessionStatusQuery, SessionSummary,
};
use tinderbox_client::types::sessions::FinishReason;

use crate::error::{Error, Result};
use crate::ids::{CheckpointPath, OwnerId, SessionId};
use crate::store::Metadata;
use crate::store::checkpoint_lists::Listed;
use crate::store::checkpoints::CheckpointRow;
use crate::store::sessions::{Finish, SessionRow};

use super::auth::Owner;
use super::body::JsonBody;
use super::checkpoints::{visible, wire_type};
use super::create::wire_name;
use super::error::ApiResult;
use super::state::App;

/// Rows read at a time.
const BATCH: u64 = 500;

const MAX_LIMIT: i64 = 200;
const MAX_OWNERS: usize = 10;

pub async fn sessions(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<SessionSearchRequest>,
) -> ApiResult<Json<SessionSearchResponse>> {
    let limit = limit(r.limit)?;
    checked(&r)?;
    checked_owner(&r.owner)?;
    if !includes(&r.owner, &owner) {
        return Ok(Json(SessionSearchResponse::default()));
    }
    let (store, owner) = (app.store(), &owner);
    let read = |last: Option<_>| async move { store.sessions_after(owner, last.as_ref(), BATCH).await };
    let place = |row: &SessionRow| (row.created_at, row.id.clone());
    let start = r.cursor.as_ref().map(|c| (c.last_created_at, SessionId(c.last_session_id.clone())));
    let (rows, next) = page(limit, start, read, place, |row| session_matches(row, &r)).await?;
    let mut sessions = Vec::new();
    for row in rows {
        sessions.push(summary(&app, row).await?);
    }
    let cursor = |(last_created_at, id): (_, SessionId)| SessionSearchCursor { last_created_at, last_session_id: id.0 };
    Ok(Json(SessionSearchResponse { sessions, next_cursor: next.map(cursor) }))
}

pub async fn checkpoints(
    State(app): State<App>,
    Owner(owner): Owner,
    headers: HeaderMap,
    JsonBody(r): JsonBody<CheckpointSearchRequest>,
) -> ApiResult<Json<CheckpointSearchResponse>> {
    let limit = limit(r.limit)?;
    checked_owner(&r.owner)?;
    let of = Listed { owner: &owner, published: r.owner != SearchOwner::Own, project_id: None };
    let start = match &r.cursor {
        Some(c) => Some((c.last_time, c.last_tinker_path.parse().map_err(|e: Error| e.context("cursor"))?)),
        None => None,
    };
    let store = app.store();
    let read = |last: Option<_>| async move { store.checkpoints_after(of, last.as_ref(), BATCH).await };
    let place = |(row, _): &(CheckpointRow, String)| (row.created_at, row.path.clone());
    let wanted = |(row, project): &(CheckpointRow, String)| {
        includes(&r.owner, &row.owner) && checkpoint_matches(row, project, &r)
    };
    let (rows, next) = page(limit, start, read, place, wanted).await?;
    let found = rows.into_iter().map(|(row, _)| row).collect();
    let cursor = |(last_time, path): (_, CheckpointPath)| CheckpointSearchCursor {
        last_time,
        last_tinker_path: path.to_string(),
    };
    Ok(Json(CheckpointSearchResponse { checkpoints: visible(found, &headers), next_cursor: next.map(cursor) }))
}

/// Up to `limit` of the rows behind `last` that are wanted, and the last one's place if there are more.
async fn page<R, P, F: Future<Output = Result<Vec<R>>>>(
    limit: usize,
    mut last: Option<P>,
    read: impl Fn(Option<P>) -> F,
    place: impl Fn(&R) -> P,
    wanted: impl Fn(&R) -> bool,
) -> Result<(Vec<R>, Option<P>)> {
    let mut found = Vec::new();
    loop {
        let rows = read(last).await?;
        let end = (rows.len() as u64) < BATCH;
        last = rows.last().map(&place);
        found.extend(rows.into_iter().filter(&wanted).take(limit + 1 - found.len()));
        if found.len() > limit {
            found.truncate(limit);
            let next = found.last().map(&place);
            return Ok((found, next));
        }
        if end {
            return Ok((found, None));
        }
    }
}

fn limit(limit: i64) -> Result<usize> {
    if (1..=MAX_LIMIT).contains(&limit) {
        return Ok(limit as usize);
    }
    Err(Error::user(format!("limit is {limit}; it must lie between 1 and {MAX_LIMIT}")))
}

fn checked(r: &SessionSearchRequest) -> Result<()> {
    if r.display_name.as_deref() == Some("") {
        return Err(Error::user("display_name is empty; leave it out to search every name"));
    }
    let empty =
        |q: &SessionStatusQuery| matches!(q, SessionStatusQuery::ClientFinished { reasons: Some(r) } if r.is_empty());
    match &r.statuses {
        Some(statuses) if statuses.is_empty() || statuses.iter().any(empty) => {
            Err(Error::user("statuses, or the reasons of one, are an empty list; leave it out to match every status"))
        }
        _ => Ok(()),
    }
}

fn checked_owner(asked: &SearchOwner) -> Result<()> {
    match asked {
        SearchOwner::User { owner_urns } if !(1..=MAX_OWNERS).contains(&owner_urns.len()) => Err(Error::user(format!(
            "owner.owner_urns has {} entries; 1 to {MAX_OWNERS} are allowed",
            owner_urns.len()
        ))),
        _ => Ok(()),
    }
}

/// Whether rows of `candidate` are asked for.
fn includes(asked: &SearchOwner, candidate: &OwnerId) -> bool {
    match asked {
        SearchOwner::Own | SearchOwner::Accessible => true,
        SearchOwner::User { owner_urns } => owner_urns.contains(&candidate.0),
    }
}

fn session_matches(row: &SessionRow, r: &SessionSearchRequest) -> bool {
    let id = r.session_id.as_ref().map(|id| *id == row.id.0);
    let name = r.display_name.as_ref().map(|words| has_words(row.display_name.as_deref().unwrap_or(""), words));
    let named = match (id, name) {
        (Some(id), Some(name)) => id || name,
        (one, other) => one.or(other).unwrap_or(true),
    };
    named
        && in_projects(row.project_id.as_deref().unwrap_or(""), r.project_ids.as_deref())
        && has_pairs(&row.user_metadata, &r.user_metadata)
        && r.statuses.as_ref().is_none_or(|any| any.iter().any(|wanted| status_matches(row.finished.as_ref(), wanted)))
}

fn checkpoint_matches(row: &CheckpointRow, project: &str, r: &CheckpointSearchRequest) -> bool {
    let types = || r.checkpoint_types.as_ref();
    r.name.as_ref().is_none_or(|words| has_words(&row.path.name, words))
        && r.training_run_id.as_ref().is_none_or(|run| *run == row.path.run.0)
        && r.base_model.as_ref().is_none_or(|base| *base == wire_name(&row.base_model, row.kind))
        && types().is_none_or(|types| types.contains(&wire_type(row.path.kind)))
        && in_projects(project, r.project_ids.as_deref())
        && has_pairs(&row.user_metadata, &r.user_metadata)
}

fn has_words(text: &str, words: &str) -> bool {
    let text = text.to_lowercase();
    words.to_lowercase().split_whitespace().all(|word| text.contains(word))
}

fn in_projects(project: &str, wanted: Option<&[String]>) -> bool {
    wanted.is_none_or(|any| any.iter().any(|p| p == project))
}

fn has_pairs(have: &Metadata, wanted: &Metadata) -> bool {
    wanted.iter().all(|(key, value)| have.get(key) == Some(value))
}

fn status_matches(finish: Option<&Finish>, wanted: &SessionStatusQuery) -> bool {
    match (status(finish), wanted) {
        (SessionStatus::Active, SessionStatusQuery::Active) => true,
        (SessionStatus::Cancelled { .. }, SessionStatusQuery::Cancelled) => true,
        (SessionStatus::ClientFinished { reason, .. }, SessionStatusQuery::ClientFinished { reasons }) => {
            reasons.as_ref().is_none_or(|any| any.contains(&reason))
        }
        _ => false,
    }
}

/// A session that fell silent counts as cancelled: its client never said how it ended.
fn status(finish: Option<&Finish>) -> SessionStatus {
    let Some(finish) = finish else { return SessionStatus::Active };
    let detail = finish.detail.clone();
    match FinishReason::of_word(&finish.reason) {
        Some(reason) => SessionStatus::ClientFinished { reason, detail },
        None => SessionStatus::Cancelled { detail },
    }
}

async fn summary(app: &App, row: SessionRow) -> Result<SessionSummary> {
    let (checkpoints_count, bytes) = app.store().session_checkpoints(&row.id).await?;
    Ok(SessionSummary {
        session_id: row.id.0,
        created_at: row.created_at,
        owner: row.owner.0,
        project_id: row.project_id.unwrap_or_default(),
        status: Some(status(row.finished.as_ref())),
        checkpoints_count,
        display_name: row.display_name,
        user_metadata: Some(row.user_metadata),
        checkpoint_storage_bytes: Some(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::store::testing::session;
    use chrono::{TimeDelta, Utc};

    async fn ids(app: &App, r: SessionSearchRequest) -> Vec<String> {
        let Json(page) = sessions(State(app.clone()), Owner(owner()), JsonBody(r)).await.unwrap();
        page.sessions.into_iter().map(|s| s.session_id).collect()
    }

    /// Three sessions, the oldest first: named, with a project and metadata, finished in different ways.
    async fn three() -> (App, [SessionId; 3]) {
        let (app, _engine) = testing::app().await;
        let mut made = Vec::new();
        for (i, name) in ["Run Alpha one", "beta", "alpha TWO"].iter().enumerate() {
            let row = SessionRow {
                created_at: Utc::now() - TimeDelta::minutes(3 - i as i64),
                user_metadata: Metadata::from([("i".into(), i.to_string()), ("all".into(), "x".into())]),
                project_id: (i == 1).then(|| "p".into()),
                display_name: Some((*name).into()),
                ..session(&SessionId::random().0, &owner().0)
            };
            app.store().insert_session(&row).await.unwrap();
            made.push(row.id);
        }
        let finish = |reason: &str| Finish { at: Utc::now(), reason: reason.into(), detail: Some("why".into()) };
        app.store().finish_session(&made[0], &finish("errored")).await.unwrap();
        app.store().finish_session(&made[1], &finish("abandoned")).await.unwrap();
        (app, made.try_into().unwrap())
    }

    #[tokio::test]
    async fn each_filter_alone() {
        let (app, [one, two, three]) = three().await;
        let all = SessionSearchRequest::default;
        let alpha = || Some("ALPHA".to_owned());
        assert_eq!(ids(&app, all()).await, [&*three.0, &*two.0, &*one.0]);
        assert_eq!(ids(&app, SessionSearchRequest { display_name: alpha(), ..all() }).await, [&*three.0, &*one.0]);
        let words = Some("one alpha".to_owned());
        assert_eq!(ids(&app, SessionSearchRequest { display_name: words, ..all() }).await, [&*one.0]);
        let id = Some(two.0.clone());
        assert_eq!(ids(&app, SessionSearchRequest { session_id: id.clone(), ..all() }).await, [&*two.0]);
        let either = SessionSearchRequest { session_id: id, display_name: alpha(), ..all() };
        assert_eq!(ids(&app, either).await.len(), 3);
        let pairs = Metadata::from([("i".into(), "2".into()), ("all".into(), "x".into())]);
        assert_eq!(ids(&app, SessionSearchRequest { user_metadata: pairs, ..all() }).await, [&*three.0]);
        let project = |p: &str| SessionSearchRequest { project_ids: Some(vec![p.into()]), ..all() };
        assert_eq!(ids(&app, project("p")).await, [&*two.0]);
        assert_eq!(ids(&app, project("")).await, [&*three.0, &*one.0]);
        let user = |urns: &[&str]| {
            let owner_urns = urns.iter().map(|u| u.to_string()).collect();
            SessionSearchRequest { owner: SearchOwner::User { owner_urns }, ..all() }
        };
        assert_eq!(ids(&app, user(&["me"])).await.len(), 3);
        assert_eq!(ids(&app, user(&["other"])).await.len(), 0);
        let none = sessions(State(app.clone()), Owner(owner()), JsonBody(user(&[]))).await;
        assert!(none.is_err());
    }

    #[tokio::test]
    async fn each_status_alone() {
        let (app, [one, two, three]) = three().await;
        let with = |status| SessionSearchRequest { statuses: Some(vec![status]), ..Default::default() };
        let finished = |reasons| with(SessionStatusQuery::ClientFinished { reasons });
        assert_eq!(ids(&app, with(SessionStatusQuery::Active)).await, [&*three.0]);
        assert_eq!(ids(&app, with(SessionStatusQuery::Cancelled)).await, [&*two.0]);
        assert_eq!(ids(&app, with(SessionStatusQuery::Failed)).await, [""; 0]);
        assert_eq!(ids(&app, finished(None)).await, [&*one.0]);
        assert_eq!(ids(&app, finished(Some(vec![FinishReason::Errored]))).await, [&*one.0]);
        assert_eq!(ids(&app, finished(Some(vec![FinishReason::Success]))).await, [""; 0]);
    }

    #[tokio::test]
    async fn pages_follow_one_another() {
        let (app, made) = three().await;
        let (mut cursor, mut seen) = (None, Vec::new());
        loop {
            let r = SessionSearchRequest { limit: 2, cursor, ..Default::default() };
            let Json(page) = sessions(State(app.clone()), Owner(owner()), JsonBody(r)).await.unwrap();
            seen.extend(page.sessions.into_iter().map(|s| s.session_id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
            assert_eq!(seen.len(), 2);
        }
        assert_eq!(seen, [&*made[2].0, &*made[1].0, &*made[0].0]);
        for bad in [0, 201, -1] {
            let r = SessionSearchRequest { limit: bad, ..Default::default() };
            assert!(sessions(State(app.clone()), Owner(owner()), JsonBody(r)).await.is_err());
        }
        let other = Owner(OwnerId("other".into()));
        let Json(page) = sessions(State(app), other, JsonBody(SessionSearchRequest::default())).await.unwrap();
        assert!(page.sessions.is_empty());
    }
}
