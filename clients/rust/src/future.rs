//! The result of a submitted request: long polls until it is there (protocol ch. 10).

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::proto;
use crate::transport::{Answer, Call, PROTOBUF, Transport, backoff};
use crate::types::futures::{QueueState, RequestFailedResponse, RetrieveFutureRequest, TryAgainResponse};
use crate::types::sampling::SampleResponse;
use crate::types::training::{CreateModelResponse, ForwardBackwardOutput, OptimStepResponse, UnloadModelResponse};
use crate::types::weights::{
    LoadWeightsResponse, SaveWeightsExternalResponse, SaveWeightsForSamplerResponse, SaveWeightsResponse,
};

/// Pause after a poll that came back at once, so that no server's answer makes a hot loop.
const SHORTEST_POLL: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A request that the server has accepted. Await it for the result; dropping it leaves the work to the server.
#[must_use = "the result is fetched only when the future is awaited"]
pub struct ApiFuture<T> {
    transport: Arc<Transport>,
    /// One per chunk, in order.
    request_ids: Vec<String>,
    combine: fn(Vec<T>) -> Result<T>,
    timeout: Option<Duration>,
}

/// What a promise can resolve to.
pub trait PromiseResult: Sized {
    /// Whether the server may answer in protobuf.
    const PROTOBUF: bool = false;

    fn from_json(body: &[u8]) -> Result<Self>;

    fn from_protobuf(_body: Bytes) -> Result<Self> {
        Err(Error::Decode("protobuf where JSON was asked for".into()))
    }
}

impl<T: PromiseResult> ApiFuture<T> {
    pub(crate) fn single(transport: Arc<Transport>, request_id: String) -> Self {
        let first = |results: Vec<T>| results.into_iter().next().ok_or_else(|| Error::Decode("no result".into()));
        Self { transport, request_ids: vec![request_id], combine: first, timeout: None }
    }

    pub(crate) fn chunked(
        transport: Arc<Transport>,
        request_ids: Vec<String>,
        combine: fn(Vec<T>) -> Result<T>,
    ) -> Self {
        Self { transport, request_ids, combine, timeout: None }
    }

    /// The ids of the promises behind this future.
    pub fn request_ids(&self) -> &[String] {
        &self.request_ids
    }

    /// Gives up (`Error::Timeout`) when there is no result after `limit`. Without it the wait has no end.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Waits for the result. The same as awaiting the future itself.
    pub async fn result(self) -> Result<T> {
        let deadline = self.timeout.map(|limit| (Instant::now() + limit, limit));
        let mut results = Vec::with_capacity(self.request_ids.len());
        for id in &self.request_ids {
            let poll = retrieve(&self.transport, id);
            results.push(match deadline {
                None => poll.await?,
                Some((at, waited)) => tokio::time::timeout_at(at.into(), poll)
                    .await
                    .map_err(|_| Error::Timeout { request_id: id.clone(), waited })??,
            });
        }
        (self.combine)(results)
    }
}

impl<T: PromiseResult + Send + 'static> IntoFuture for ApiFuture<T> {
    type Output = Result<T>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.result())
    }
}

/// Polls one promise until it has a result or a final error.
pub(crate) async fn retrieve<T: PromiseResult>(transport: &Transport, request_id: &str) -> Result<T> {
    let request = RetrieveFutureRequest { request_id: request_id.into(), allow_metadata_only: false };
    let mut call = Call::json(Method::POST, "/retrieve_future", &request)?;
    if T::PROTOBUF {
        call.accept = PROTOBUF;
    }
    let mut faults = 0;
    loop {
        let start = Instant::now();
        let next = match transport.once(&call, request_id).await {
            Ok(answer) => judge(answer, &call, request_id)?,
            Err(Error::Connection(reason)) => Next::BackOff(reason),
            Err(e) => return Err(e),
        };
        match next {
            Next::Json(body) => return T::from_json(&body),
            Next::Protobuf(body) => return T::from_protobuf(body),
            Next::PollAgain => {
                faults = 0;
                tokio::time::sleep(SHORTEST_POLL.saturating_sub(start.elapsed())).await;
            }
            Next::BackOff(reason) => {
                tracing::debug!(request_id, faults, reason, "poll failed, trying again");
                tokio::time::sleep(backoff(faults, LONGEST_PAUSE)).await;
                faults += 1;
            }
        }
    }
}

/// What an answer to a poll asks for.
#[derive(Debug, PartialEq)]
enum Next {
    Json(Bytes),
    Protobuf(Bytes),
    PollAgain,
    BackOff(String),
}

/// The table of protocol §10.4, where 5xx are waited out instead of hammered.
fn judge(answer: Answer, call: &Call<'_>, request_id: &str) -> Result<Next> {
    match answer.status {
        200..=299 if answer.protobuf => Ok(Next::Protobuf(answer.body)),
        200..=299 => judge_json(answer.body, request_id),
        408 => {
            log_pause(&answer.body);
            Ok(Next::PollAgain)
        }
        410 => Err(Error::PromiseLost { request_id: request_id.into(), detail: answer.detail() }),
        402 | 429 | 500.. => Ok(Next::BackOff(format!("status {}: {}", answer.status, answer.detail()))),
        _ => Err(answer.into_error(call)),
    }
}

/// Keys decide in this order: `type: "try_again"`, then `error`; everything else is the result.
fn judge_json(body: Bytes, request_id: &str) -> Result<Next> {
    let value: Value =
        serde_json::from_slice(&body).map_err(|e| Error::Decode(format!("result of {request_id}: {e}")))?;
    if value["type"] == "try_again" {
        log_pause(&body);
        return Ok(Next::PollAgain);
    }
    if value.get("error").is_none() {
        return Ok(Next::Json(body));
    }
    let failed: RequestFailedResponse = decode(&body)?;
    Err(Error::RequestFailed { request_id: request_id.into(), message: failed.error, category: failed.category })
}

fn log_pause(body: &[u8]) {
    if let Ok(TryAgainResponse { request_id, queue_state, queue_state_reason }) = serde_json::from_slice(body)
        && queue_state != QueueState::Active
    {
        tracing::warn!(request_id, ?queue_state, reason = queue_state_reason.unwrap_or_default(), "request is paused");
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|e| Error::Decode(e.to_string()))
}

macro_rules! json_results {
    ($($t:ty),*) => {$(
        impl PromiseResult for $t {
            fn from_json(body: &[u8]) -> Result<Self> {
                decode(body)
            }
        }
    )*};
}
json_results!(
    CreateModelResponse,
    LoadWeightsResponse,
    OptimStepResponse,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
    UnloadModelResponse
);

macro_rules! protobuf_results {
    ($($t:ty, $message:ty;)*) => {$(
        impl PromiseResult for $t {
            const PROTOBUF: bool = true;

            fn from_json(body: &[u8]) -> Result<Self> {
                decode(body)
            }

            fn from_protobuf(body: Bytes) -> Result<Self> {
                let message = <$message>::decode(body).map_err(|e| Error::Decode(e.to_string()))?;
                Ok(Self::try_from(&message)?)
            }
        }
    )*};
}
protobuf_results! {
    ForwardBackwardOutput, proto::ForwardBackwardOutput;
    SampleResponse, proto::SampleResponse;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::futures::RequestErrorCategory;

    fn answer(status: u16, protobuf: bool, body: &'static str) -> Result<Next> {
        let call = Call::empty(Method::POST, "/retrieve_future");
        let body = Bytes::from_static(body.as_bytes());
        judge(Answer { status, protobuf, body, ..Answer::default() }, &call, "r")
    }

    #[test]
    fn every_answer_of_the_table() {
        assert_eq!(
            answer(200, false, r#"{"metrics": {}}"#).unwrap(),
            Next::Json(Bytes::from_static(br#"{"metrics": {}}"#))
        );
        assert_eq!(answer(200, true, "x").unwrap(), Next::Protobuf(Bytes::from_static(b"x")));
        assert_eq!(answer(408, false, "").unwrap(), Next::PollAgain);
        assert_eq!(answer(200, false, r#"{"type": "try_again", "request_id": "r"}"#).unwrap(), Next::PollAgain);
        for status in [402, 429, 500, 503] {
            assert!(matches!(answer(status, false, "").unwrap(), Next::BackOff(_)), "{status}");
        }
        for status in [400, 401, 404, 422] {
            assert_eq!(answer(status, false, r#"{"detail": "no"}"#).unwrap_err().status(), Some(status));
        }
        assert!(matches!(answer(410, false, "").unwrap_err(), Error::PromiseLost { .. }));
    }

    #[test]
    fn a_failure_keeps_its_category() {
        let error = answer(200, false, r#"{"error": "datum 0 is too long", "category": "user"}"#).unwrap_err();
        assert_eq!(error.category(), RequestErrorCategory::User);
        assert_eq!(error.to_string(), "request r failed (user): datum 0 is too long");
    }

    #[test]
    fn both_encodings_of_a_result() {
        let o = ForwardBackwardOutput { metrics: [("loss:sum".into(), 2.0)].into(), ..Default::default() };
        let message = proto::ForwardBackwardOutput::from(&o).encode_to_vec();
        assert_eq!(ForwardBackwardOutput::from_protobuf(message.into()).unwrap(), o);
        assert_eq!(ForwardBackwardOutput::from_json(&serde_json::to_vec(&o).unwrap()).unwrap(), o);
        assert!(OptimStepResponse::from_protobuf(Bytes::new()).is_err());
    }
}
