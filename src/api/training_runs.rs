//! The list of runs and one run (protocol §6.2, §7.14).

use axum::Json;
use axum::extract::{Path, State};
use serde_json::json;
use tinderbox_client::types::checkpoints::{
    AccessScope, Cursor, RollbackResponse, RunFault, RunsQuery, ScopeQuery, TrainingRun, TrainingRunsResponse,
};

use crate::command::{Fault, RunKind};
use crate::error::Result;
use crate::ids::{CheckpointKind, ModelId, OwnerId};
use crate::store::checkpoint_lists::Listed;
use crate::store::runs::RunRow;

use super::access::no_run;
use super::auth::Owner;
use super::checkpoints::wire_row;
use super::create::{lora_rank, wire_name};
use super::error::ApiResult;
use super::query::{QueryOf, page};
use super::state::App;

/// This owner's runs; `accessible` also those of others that have a published checkpoint.
pub async fn list(
    State(app): State<App>,
    Owner(owner): Owner,
    QueryOf(q): QueryOf<RunsQuery>,
) -> ApiResult<Json<TrainingRunsResponse>> {
    let (limit, offset) = page(q.limit, q.offset)?;
    let published = q.access_scope == AccessScope::Accessible;
    let of = Listed { owner: &owner, published, project_id: q.project_id.as_deref() };
    let page = app.store().runs(of, limit, offset).await?;
    let mut training_runs = Vec::with_capacity(page.rows.len());
    for row in page.rows {
        training_runs.push(wire_run(&app, row, &owner).await?);
    }
    let cursor = Cursor { offset: q.offset, limit: q.limit, total_count: page.total as i64 };
    Ok(Json(TrainingRunsResponse { training_runs, cursor }))
}

pub async fn get(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
    QueryOf(q): QueryOf<ScopeQuery>,
) -> ApiResult<Json<TrainingRun>> {
    let id = ModelId(id);
    let row = app.store().run(&id).await?.ok_or_else(|| no_run(&id))?;
    let own = row.owner == owner;
    let run = wire_run(&app, row, &owner).await?;
    let published = run.last_checkpoint.is_some() || run.last_sampler_checkpoint.is_some();
    match own || (q.access_scope == AccessScope::Accessible && published) {
        true => Ok(Json(run)),
        false => Err(no_run(&id).into()),
    }
}

/// Weights and optimiser go back to the run's last good state on disk. Its numbers go on.
pub async fn roll_back(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
) -> ApiResult<Json<RollbackResponse>> {
    let run = app.run(&owner, &ModelId(id)).await?;
    app.futures().pace().admit(&owner, 1, 0)?;
    let model = run.row.id.clone();
    let before_seq_id = app.futures().roll_back(owner.clone(), model.clone()).await?;
    app.futures().write_marks().await?;
    let what = json!({ "model_id": model.0, "before_seq_id": before_seq_id });
    app.store().note(Some(&owner), "run_rolled_back", what);
    Ok(Json(RollbackResponse { training_run_id: model.0, before_seq_id }))
}

fn wire_fault(fault: Fault) -> RunFault {
    RunFault { seq_id: fault.seq_id, datum: fault.datum, reason: fault.reason }
}

/// Another owner sees of a run what was published of it, and not what its owner noted on it.
async fn wire_run(app: &App, row: RunRow, reader: &OwnerId) -> Result<TrainingRun> {
    let foreign = row.owner != *reader;
    let last = app.store().last_checkpoint(&row.id, CheckpointKind::Training, foreign).await?;
    let last_sampler = app.store().last_checkpoint(&row.id, CheckpointKind::Sampler, foreign).await?;
    let unavailable = app.model_of(&row.base_model, format_args!("run {}", row.id)).err().map(|e| e.message);
    Ok(TrainingRun {
        training_run_id: row.id.0,
        base_model: wire_name(&row.base_model, row.kind),
        model_owner: row.owner.0,
        is_lora: matches!(row.kind, RunKind::Lora(_)),
        corrupted: row.corrupted,
        fault: row.fault.filter(|_| !foreign).map(wire_fault),
        lora_rank: lora_rank(row.kind),
        unavailable,
        last_request_time: row.last_request_at,
        last_checkpoint: last.map(wire_row),
        last_sampler_checkpoint: last_sampler.map(wire_row),
        user_metadata: (!foreign).then_some(row.user_metadata),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::store::testing::run;

    #[tokio::test]
    async fn a_run_whose_base_model_is_not_served_is_listed_and_says_so() {
        let (app, _engine) = testing::app().await;
        let session = testing::session(&app, chrono::Utc::now()).await.id;
        let rows = [(0, "tiny"), (1, "gone")]
            .map(|(n, base)| RunRow { base_model: base.into(), ..run(&session.model(n).0, &owner().0) });
        for row in &rows {
            app.store().insert_run(row).await.unwrap();
        }
        let query = QueryOf(RunsQuery::default());
        let listed = list(State(app.clone()), Owner(owner()), query).await.unwrap().0.training_runs;
        assert_eq!(listed.len(), 2);
        for row in rows {
            let (id, query) = (row.id.0.clone(), QueryOf(ScopeQuery::default()));
            let one = get(State(app.clone()), Owner(owner()), Path(id.clone()), query).await.unwrap().0;
            assert_eq!(listed.iter().find(|r| r.training_run_id == id), Some(&one));
            assert!(!one.corrupted, "its weights are as they were");
            let says = format!("base model gone of run {id} is no longer served here; start with --model gone=DIR");
            match row.base_model.as_str() {
                "tiny" => assert_eq!(one.unavailable, None),
                _ => assert!(one.unavailable.is_some_and(|why| why.starts_with(&says))),
            }
        }
    }
}
