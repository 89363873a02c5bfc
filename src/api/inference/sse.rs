//! Answers while they grow, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use chrono::Utc;
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::time::{Interval, interval};

use crate::api::error::ApiResult;
use crate::api::keys::{Caller, KeyRef};
use crate::api::state::App;
use crate::command::TokenEvent;
use crate::error::Result;

use super::error_shapes::Shape;
use super::jobs::Jobs;

/// A request that fails before its first token gets a status of its own, if it fails within this time.
const FIRST_TOKEN: Duration = Duration::from_secs(5);

/// How often a stream looks whether its key is still good.
const LOOK: Duration = Duration::from_secs(1);

/// Comments that keep idle connections open while a request waits for its turn.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What an API tells at which moment.
pub trait Teller: Send + 'static {
    /// Of the error that ends a stream early.
    const SHAPE: Shape;

    fn start(&mut self) -> Vec<Event>;
    /// A token of this prompt.
    fn token(&mut self, prompt: usize, token: TokenEvent) -> Vec<Event>;
    /// After the last token, when nothing failed.
    fn end(&mut self) -> Vec<Event>;
}

/// An event of this type, or of none, with JSON data.
pub fn event(kind: Option<&str>, data: &Value) -> Event {
    let event = Event::default().data(data.to_string());
    if let Some(kind) = kind { event.event(kind) } else { event }
}

struct State<T> {
    app: App,
    key: KeyRef,
    /// When the key is looked up again.
    look: Interval,
    teller: T,
    /// `None` when all was told.
    jobs: Option<Jobs>,
    queue: VecDeque<Event>,
}

impl<T: Teller> State<T> {
    /// Waits for what there is to tell next. On an error the jobs are dropped, which ends their work.
    async fn wait(&mut self, mut jobs: Jobs) -> ApiResult<()> {
        tokio::select! {
            biased;
            _ = self.look.tick() => {
                self.app.keys().still_good(self.key, Utc::now())?;
                self.jobs = Some(jobs);
            }
            next = jobs.next() => match next {
                Some((prompt, token)) => {
                    self.queue.extend(self.teller.token(prompt, token));
                    self.jobs = Some(jobs);
                }
                None => {
                    jobs.outputs().await?;
                    self.queue.extend(self.teller.end());
                }
            },
        }
        Ok(())
    }
}

/// Follows the jobs until they end, the caller's key ends or the client goes away.
///
/// # Errors
/// The engine's refusal, when it comes before any token.
pub async fn follow<T: Teller>(app: &App, caller: &Caller, mut jobs: Jobs, mut teller: T) -> Result<Response> {
    let first = tokio::time::timeout(FIRST_TOKEN, jobs.next()).await;
    let mut queue = VecDeque::from(teller.start());
    let jobs = match first {
        Ok(None) => {
            jobs.outputs().await?;
            queue.extend(teller.end());
            None
        }
        Ok(Some((prompt, token))) => {
            queue.extend(teller.token(prompt, token));
            Some(jobs)
        }
        Err(_) => Some(jobs),
    };
    Ok(respond(State { app: app.clone(), key: caller.key, look: interval(LOOK), teller, jobs, queue }))
}

fn respond<T: Teller>(state: State<T>) -> Response {
    let events = unfold(state, |mut state| async move {
        loop {
            if let Some(event) = state.queue.pop_front() {
                return Some((Ok::<_, Infallible>(event), state));
            }
            let jobs = state.jobs.take()?;
            if let Err(e) = state.wait(jobs).await {
                state.queue.push_back(T::SHAPE.late(&e));
            }
        }
    });
    let stream = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Proxies that collect answers would hold the tokens back.
    ([("x-accel-buffering", "no")], stream).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::json;

    use super::*;
    use crate::api::inference::testing::{start, token};
    use crate::api::testing;
    use crate::command::{Outcome, SampleOutput, StopReason};
    use crate::engine::handle::Message;
    use crate::store::testing::key;

    /// Tells each token's number.
    struct Numbers;

    impl Teller for Numbers {
        const SHAPE: Shape = Shape::Anthropic;

        fn start(&mut self) -> Vec<Event> {
            Vec::new()
        }

        fn token(&mut self, _: usize, token: TokenEvent) -> Vec<Event> {
            vec![event(None, &json!(token.token))]
        }

        fn end(&mut self) -> Vec<Event> {
            vec![event(None, &json!("end"))]
        }
    }

    async fn text(response: Response) -> String {
        let body = tokio::time::timeout(Duration::from_secs(20), to_bytes(response.into_body(), 1 << 16));
        String::from_utf8(body.await.expect("the stream ends").unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_stream_ends_soon_after_its_key_is_revoked() {
        let (app, engine) = testing::app().await;
        for name in ["ann", "bob"] {
            app.store().insert_key(key(name, &format!("tml-{name}"))).await.unwrap();
        }
        app.keys().refresh(app.store()).await.unwrap();
        let mut streams = Vec::new();
        for secret in ["tml-ann", "tml-bob"] {
            let (jobs, mut submitted) = start(&app, 1, true, &engine).await;
            let mut submitted = submitted.remove(0);
            let events = submitted.events.take().unwrap();
            events.send(token(7, None)).unwrap();
            let caller = app.keys().caller(Some(secret), Utc::now()).unwrap();
            let response = follow(&app, &caller, jobs, Numbers).await.unwrap();
            streams.push((tokio::spawn(text(response)), submitted, events));
        }
        app.store().revoke_keys(&[1], Utc::now()).await.unwrap();
        app.keys().refresh(app.store()).await.unwrap();

        let (bob, submitted, events) = streams.remove(1);
        let (ann, _waits, told) = streams.remove(0);
        let error = json!({"type": "error", "error": {"type": "authentication_error",
            "message": "the API key was revoked"}});
        assert_eq!(ann.await.unwrap(), format!("data: 7\n\ndata: {error}\nevent: error\n\n"));
        assert!(matches!(engine.try_recv(), Ok(Message::Cancel(_))), "its work ends too");
        assert!(told.is_closed());

        events.send(token(8, Some(StopReason::Stop))).unwrap();
        drop(events);
        (submitted.reply)(Ok(Outcome::Sampled(SampleOutput::default())));
        assert_eq!(bob.await.unwrap(), "data: 7\n\ndata: 8\n\ndata: \"end\"\n\n");
    }
}
