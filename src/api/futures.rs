//! `retrieve_future`, `retrieve_futures` and `cancel_future` (protocol ch. 10).

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tinderbox_client::types::futures::{
    CancelFutureRequest, FutureCompletion, FuturesTarget, QueueState, RequestErrorCategory, RequestFailedResponse,
    RetrieveFutureRequest, RetrieveFuturesRequest, RetrieveFuturesResponse, TryAgainResponse,
};

use crate::engine::load::Wait;
use crate::error::{Category, Error};
use crate::futures::news::{Event, Target};
use crate::futures::retrieve::Poll;
use crate::ids::{RequestId, SamplerId};

use super::answers;
use super::auth::Owner;
use super::body::JsonBody;
use super::error::{ApiError, ApiResult};
use super::headers::text;
use super::state::App;

/// A client that hears nothing for its read timeout hangs up; the answer must be there well before.
const MARGIN: Duration = Duration::from_secs(10);

/// A client polls again at once, so a wait is never shorter.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Bytes from which a result is encoded on a thread of its own.
const LARGE: usize = 1 << 18;

/// Holds the request until the promise settles. A failure is a 200 that says so, an unknown promise 410, "not yet" 408.
pub async fn retrieve(
    State(app): State<App>,
    Owner(owner): Owner,
    headers: HeaderMap,
    JsonBody(r): JsonBody<RetrieveFutureRequest>,
) -> ApiResult<Response> {
    let id = RequestId(r.request_id);
    match app.futures().retrieve(&id, &owner, wait(&headers, app.limits().long_poll)).await {
        Poll::Done(answer) if answer.size_bytes() < LARGE => Ok(answers::response(&answer, wants_protobuf(&headers))),
        Poll::Done(answer) => {
            let protobuf = wants_protobuf(&headers);
            Ok(app.heavy(move || answers::response(&answer, protobuf)).await?)
        }
        Poll::Failed(e) => Ok(Json(failed(e)).into_response()),
        Poll::Pending(wait) => {
            let again = try_again(id.clone(), app.futures().paused(&id, &owner), wait);
            Ok((StatusCode::REQUEST_TIMEOUT, Json(again)).into_response())
        }
        Poll::Unknown => Err(ApiError::gone("this promise is unknown: it expired, or the server was restarted since")),
    }
}

/// News of many samples of one client; holds the request until there are some, or answers at once when only
/// acknowledgements are brought. An id that is told may have been forgotten since: `retrieve_future` then says so.
pub async fn retrieve_many(
    State(app): State<App>,
    Owner(owner): Owner,
    headers: HeaderMap,
    JsonBody(r): JsonBody<RetrieveFuturesRequest>,
) -> ApiResult<Json<RetrieveFuturesResponse>> {
    let FuturesTarget::SamplingSession { sampling_session_id, cloned_sampler_id } = r.target;
    let target = Target { sampler: SamplerId(sampling_session_id), clone: cloned_sampler_id };
    app.sampler(&owner, &target.sampler).await?;
    let received: Vec<RequestId> = r.retrieved_request_ids.into_iter().map(RequestId).collect();
    app.futures().received(&target, &owner, &received);
    let longest = wait(&headers, app.limits().long_poll);
    let wait = match r.timeout {
        None => longest,
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .map_err(|_| Error::user(format!("timeout is {seconds}; it must be a number of seconds ≥ 0")))?
            .min(longest),
    };
    let news = app.futures().news(&target, r.prev_cursor, wait).await;
    let completion = |event: Event| match event.size_bytes {
        Some(size) => {
            FutureCompletion::Finished { request_id: event.id.0, response_payload_uncompressed_size: Some(size as u64) }
        }
        None => FutureCompletion::Failed { request_id: event.id.0 },
    };
    let completions = news.events.into_iter().map(completion).collect();
    Ok(Json(RetrieveFuturesResponse { completions, cursor: news.cursor }))
}

/// Stops an abandoned sample. Other work runs on, and an id that is unknown or done is fine too (protocol §12.5).
pub async fn cancel(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<CancelFutureRequest>,
) -> Json<Value> {
    app.futures().cancel(&RequestId(r.request_id), &owner);
    Json(json!({}))
}

fn wait(headers: &HeaderMap, longest: Duration) -> Duration {
    let timeout = text(headers, "x-stainless-read-timeout").and_then(|v| v.parse::<f64>().ok());
    let timeout = timeout.and_then(|s| Duration::try_from_secs_f64(s).ok());
    timeout.map_or(longest, |t| t.saturating_sub(MARGIN)).max(SHORTEST_WAIT).min(longest)
}

/// Waiting for one's turn is nothing unusual; a lack of memory is shown to users as a pause (protocol §10.3).
/// So is a wait for the account's own rate, which `rate` describes.
pub fn try_again(id: RequestId, rate: Option<String>, wait: Option<Wait>) -> TryAgainResponse {
    let queue_state = match (&rate, wait) {
        (Some(_), _) => QueueState::PausedRateLimit,
        (None, Some(wait)) if wait.is_for_capacity() => QueueState::PausedCapacity,
        (None, _) => QueueState::Active,
    };
    let queue_state_reason = rate.or(wait.map(|w| w.to_string()));
    TryAgainResponse { request_id: id.0, queue_state, queue_state_reason }
}

fn wants_protobuf(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    accepted.any(|v| v.contains("application/x-protobuf"))
}

fn failed(e: Error) -> RequestFailedResponse {
    RequestFailedResponse { category: category(&e), error: e.message }
}

/// Who has to act (protocol §10.5).
pub fn category(e: &Error) -> RequestErrorCategory {
    match e.category {
        Category::User | Category::NotFound => RequestErrorCategory::User,
        Category::Server => RequestErrorCategory::Server,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_ends_before_the_client_gives_up() {
        let wait = |timeout: Option<&str>| {
            let pairs = timeout.map(|t| ("x-stainless-read-timeout".parse().unwrap(), t.parse().unwrap()));
            wait(&HeaderMap::from_iter(pairs), Duration::from_secs(30)).as_secs_f64()
        };
        assert_eq!(wait(None), 30.0);
        assert_eq!(wait(Some("45")), 30.0);
        assert_eq!(wait(Some("20.5")), 10.5);
        assert_eq!(wait(Some("5.0")), 1.0);
        assert_eq!(wait(Some("soon")), 30.0);
        assert_eq!(wait(Some("-1")), 30.0);
    }

    #[test]
    fn a_poll_that_ends_says_what_is_waited_for() {
        let again = |wait| {
            let r = try_again(RequestId("r".into()), None, wait);
            (r.queue_state, r.queue_state_reason.unwrap_or_default())
        };
        assert_eq!(again(None), (QueueState::Active, String::new()));
        assert_eq!(
            again(Some(Wait::Turn { mine: 3, owners: 2 })),
            (QueueState::Active, "3 requests of yours and 2 tenants ahead".into())
        );
        let memory = Wait::Room(crate::engine::load::HeldUp::Memory, 0);
        assert_eq!(again(Some(memory)), (QueueState::PausedCapacity, "waits for key/value memory".into()));
        let rate = try_again(RequestId("r".into()), Some("quota".into()), Some(memory));
        assert_eq!((rate.queue_state, rate.queue_state_reason), (QueueState::PausedRateLimit, Some("quota".into())));
    }

    #[test]
    fn protobuf_only_when_asked_for() {
        let accept = |v: &str| wants_protobuf(&HeaderMap::from_iter([(header::ACCEPT, v.parse().unwrap())]));
        assert!(accept("application/x-protobuf, application/json"));
        assert!(!accept("application/json"));
        assert!(!wants_protobuf(&HeaderMap::new()));
    }
}
