//! Answers while they grow, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;

use crate::command::{SampleOutput, TokenEvent};
use crate::error::Result;

use super::jobs::Jobs;

/// A request that fails before its first token gets a status of its own, if it fails within this time.
const FIRST_TOKEN: Duration = Duration::from_secs(5);

/// Comments that keep idle connections open while a request waits for its turn.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What an API tells at which moment.
pub trait Teller: Send + 'static {
    fn start(&mut self) -> Vec<Event>;
    /// A token of this prompt.
    fn token(&mut self, prompt: usize, token: TokenEvent) -> Vec<Event>;
    /// After the last token, or when the engine failed.
    fn end(&mut self, outcome: Result<Vec<SampleOutput>>) -> Vec<Event>;
}

/// An event of this type, or of none, with JSON data.
pub fn event(kind: Option<&str>, data: &Value) -> Event {
    let event = Event::default().data(data.to_string());
    if let Some(kind) = kind { event.event(kind) } else { event }
}

struct State<T> {
    teller: T,
    /// `None` when all was told.
    jobs: Option<Jobs>,
    queue: VecDeque<Event>,
}

/// Follows the jobs until they end or the client goes away.
///
/// # Errors
/// The engine's refusal, when it comes before any token.
pub async fn follow<T: Teller>(mut jobs: Jobs, mut teller: T) -> Result<Response> {
    let first = tokio::time::timeout(FIRST_TOKEN, jobs.next()).await;
    let mut queue = VecDeque::from(teller.start());
    match first {
        Ok(None) => {
            let outputs = jobs.outputs().await?;
            queue.extend(teller.end(Ok(outputs)));
            return Ok(respond(State { teller, jobs: None, queue }));
        }
        Ok(Some((prompt, token))) => queue.extend(teller.token(prompt, token)),
        Err(_) => {}
    }
    Ok(respond(State { teller, jobs: Some(jobs), queue }))
}

fn respond<T: Teller>(state: State<T>) -> Response {
    let events = unfold(state, |mut state| async move {
        loop {
            if let Some(event) = state.queue.pop_front() {
                return Some((Ok::<_, Infallible>(event), state));
            }
            let mut jobs = state.jobs.take()?;
            match jobs.next().await {
                Some((prompt, token)) => {
                    state.queue.extend(state.teller.token(prompt, token));
                    state.jobs = Some(jobs);
                }
                None => state.queue.extend(state.teller.end(jobs.outputs().await)),
            }
        }
    });
    let stream = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Proxies that collect answers would hold the tokens back.
    ([("x-accel-buffering", "no")], stream).into_response()
}
