//! `GET /status`: how busy the server is, and how it goes for who asks.

use axum::Json;
use axum::extract::State;
use tinderbox_client::types::usage::{
    Capacity, QuotaStatus, QuotaUse, RecentError, ServerStatus, StatusResponse, TokenRates, WaitingRequest,
};

use crate::error::Result;
use crate::futures::recent::{Failure, Waiting};
use crate::ids::OwnerId;

use super::auth::Owner;
use super::error::ApiResult;
use super::futures::{category, try_again};
use super::state::App;

/// Waiting requests listed.
const MAX_LISTED: usize = 100;

/// Of other accounts it tells no more than how many requests wait and how many tokens are done.
pub async fn status(State(app): State<App>, Owner(owner): Owner) -> ApiResult<Json<StatusResponse>> {
    let (waiting, mine, all) = app.futures().waiting(&owner, MAX_LISTED);
    let tokens = app.futures().usage().last_minute();
    let per_second = |tokens: u64| tokens as f64 / 60.0;
    let server = ServerStatus {
        queue_depth: all as u64,
        tokens_per_second: TokenRates {
            training: per_second(tokens.training),
            prefill: per_second(tokens.prefill),
            sampled: per_second(tokens.sampled),
        },
        capacity: Capacity {
            decode_sequences: app.limits().decode_sequences as u64,
            pass_tokens: app.limits().pass_tokens as u64,
        },
    };
    Ok(Json(StatusResponse {
        server,
        quotas: quotas(&app, &owner).await?,
        waiting_count: mine as u64,
        waiting: waiting.into_iter().map(|w| waits(&app, &owner, w)).collect(),
        recent_errors: app.futures().failures(&owner).into_iter().map(failed).collect(),
    }))
}

async fn quotas(app: &App, owner: &OwnerId) -> Result<QuotaStatus> {
    let quotas = app.quotas(owner);
    let rates = app.futures().pace().used(owner);
    let of = |limit: Option<u64>, used: Option<u64>| QuotaUse { limit, used };
    // What the limit is held against: also bodies that still arrive and answers that are being streamed.
    let pending = app.futures().admission().pending(owner) as u64;
    let pending_limit = quotas.pending_requests.unwrap_or(app.limits().pending_requests as u64);
    Ok(QuotaStatus {
        weight: quotas.weight,
        max_runs: of(quotas.max_runs, Some(app.futures().runs().of(owner))),
        pending_requests: of(Some(pending_limit), Some(pending)),
        requests_per_minute: of(quotas.requests_per_minute, rates.requests),
        tokens_per_minute: of(quotas.tokens_per_minute, rates.tokens),
        disk_bytes: of(quotas.disk_bytes, Some(app.store().stored_bytes(owner, None).await?)),
    })
}

fn waits(app: &App, owner: &OwnerId, w: Waiting) -> WaitingRequest {
    let again = try_again(w.id.clone(), app.futures().paused(&w.id, owner), app.futures().waits_for(&w.id));
    WaitingRequest {
        queue_state: again.queue_state,
        queue_state_reason: again.queue_state_reason,
        request_id: w.id.0,
        request: w.key.to_string(),
        waiting_seconds: w.waited.as_secs_f64(),
        requests_before: w.before as u64,
    }
}

fn failed(f: Failure) -> RecentError {
    RecentError {
        time: f.at,
        request_id: f.id.0,
        request: f.key.to_string(),
        category: category(&f.error),
        error: f.error.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{self, owner};
    use crate::command::{AdamParams, RunCommand};
    use crate::config::quotas::Quotas;
    use crate::engine::handle::Message;
    use crate::error::Error;
    use crate::futures::complete::Completion;
    use tinderbox_client::types::futures::{QueueState, RequestErrorCategory};

    #[tokio::test]
    async fn each_account_sees_what_is_its_own() {
        let (app, engine) = testing::app().await;
        app.futures().accounts().set(owner(), Quotas { requests_per_minute: Some(1), ..Quotas::default() });
        let model = testing::run(&app).await;
        for seq in 1..=2 {
            let permit = app.futures().admission().enter(&owner()).unwrap();
            let n = app.numbered(owner(), &model.0, Some(seq), permit).await.unwrap();
            let command = RunCommand::OptimStep(AdamParams::default());
            let _ = n.issue(&app, 0, command, Completion::OptimStep).unwrap();
        }
        let ask = async |who: OwnerId| status(State(app.clone()), Owner(who)).await.unwrap().0;
        let arriving = app.futures().admission().enter(&owner()).unwrap();
        assert_eq!(ask(owner()).await.quotas.pending_requests.used, Some(3));
        drop(arriving);
        let told = ask(owner()).await;
        assert_eq!((told.waiting_count, told.server.queue_depth), (2, 2));
        assert_eq!(told.quotas.pending_requests.used, Some(2));
        assert_eq!(told.waiting[0].request, format!("seq_id 1 of run {model}"));
        let states: Vec<_> = told.waiting.iter().map(|w| (w.queue_state, w.requests_before)).collect();
        assert_eq!(states, [(QueueState::Active, 0), (QueueState::PausedRateLimit, 1)]);
        let why = told.waiting[1].queue_state_reason.as_ref().unwrap();
        assert!(why.starts_with("quota requests_per_minute: limit 1, used 1 and"), "{why}");
        let other = ask(OwnerId("other".into())).await;
        assert_eq!((other.waiting.len(), other.server.queue_depth), (0, 2));
        assert_eq!(other.quotas.pending_requests.used, Some(0));

        let Message::Submit(first) = engine.recv().unwrap() else { panic!("not a submission") };
        assert!(engine.try_recv().is_err(), "the second waits for the account's rate");
        (first.reply)(Err(Error::user("a wrong step")));
        let told = ask(owner()).await;
        let errors: Vec<_> = told.recent_errors.iter().map(|e| (e.error.as_str(), e.category)).collect();
        assert_eq!(errors, [("a wrong step", RequestErrorCategory::User)]);
        assert!(ask(OwnerId("other".into())).await.recent_errors.is_empty());
    }
}
