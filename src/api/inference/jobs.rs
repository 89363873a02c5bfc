//! Samples on their way through the engine, followed token by token or awaited; who goes away cancels them.

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, poll_fn, select_all};
use tokio::sync::{mpsc, oneshot};

use crate::accounts::usage::Work;
use crate::api::error::ApiResult;
use crate::api::state::App;
use crate::command::{Command, Origin, Outcome, SampleOutput, SampleRequest, TokenEvent};
use crate::engine::handle::Handle;
use crate::error::{Error, Result};
use crate::futures::admission::{Permit, size_bytes};
use crate::ids::{OwnerId, RequestId};

use super::target::Target;

/// Logprobs of alternatives that one request may ask for, all prompts and samples together: each becomes an object of the
/// answer, with its text.
const MAX_LOGPROBS: usize = 1 << 20;

/// Bytes of memory that one of them takes, and one of a token that is followed.
const LOGPROB_BYTES: usize = 400;
const TOKEN_BYTES: usize = 64;

/// The prompts of one request. Dropping it ends their work.
pub struct Jobs {
    events: SelectAll<BoxStream<'static, (usize, TokenEvent)>>,
    replies: Vec<oneshot::Receiver<Result<Outcome>>>,
    running: Vec<Running>,
}

/// A request of the engine, cancelled unless it was seen to end, and its share of the owner's room.
struct Running {
    engine: Handle,
    promise: RequestId,
    ended: bool,
    _permit: Permit,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.engine.cancel(self.promise.clone());
        }
    }
}

impl Jobs {
    /// Submits one sample request for each prompt; `permit` is the first one's, the others get their own.
    ///
    /// # Errors
    /// 429 when there is no room for all of them now, or the owner's rate is used up; a user error when the answer would be too large.
    pub fn start(
        app: &App,
        owner: &OwnerId,
        target: &Target,
        requests: Vec<SampleRequest>,
        mut permit: Permit,
        followed: bool,
    ) -> ApiResult<Self> {
        let asked = requests.iter().map(logprobs).fold(0, usize::saturating_add);
        if asked > MAX_LOGPROBS {
            return Err(Error::user(format!(
                "the request asks for up to {asked} logprobs (tokens × (alternatives + 1), of all prompts and samples); \
                 the limit is {MAX_LOGPROBS}: ask for fewer at a time"
            ))
            .into());
        }
        permit.was_read();
        let mut permits = vec![permit];
        while permits.len() < requests.len() {
            permits.push(app.futures().admission().enter(owner)?);
        }
        let mut commands = Vec::new();
        for (request, permit) in requests.into_iter().zip(&mut permits) {
            let told = if followed { request.num_samples.saturating_mul(request.params.max_tokens) } else { 0 };
            let answer = logprobs(&request) * LOGPROB_BYTES + told.saturating_mul(TOKEN_BYTES);
            let origin = Origin { owner: owner.clone(), session: target.session.clone(), promise: RequestId::random() };
            let promise = origin.promise.clone();
            let command = Command::Sample { origin, request };
            permit.grow(size_bytes(&command).saturating_add(answer))?;
            commands.push((promise, command));
        }
        app.futures().admit_samples(owner, commands.iter().map(|(_, command)| command))?;
        let mut jobs = Self { events: select_all([]), replies: Vec::new(), running: Vec::new() };
        for ((promise, command), permit) in commands.into_iter().zip(permits) {
            jobs.submit(app, command, target.work.clone(), followed);
            jobs.running.push(Running { engine: app.engine().clone(), promise, ended: false, _permit: permit });
        }
        Ok(jobs)
    }

    /// Gives an admitted sample to the engine.
    fn submit(&mut self, app: &App, command: Command, work: Work, followed: bool) {
        let (reply, outcome) = oneshot::channel();
        let reply = Box::new(move |result| {
            let _ = reply.send(result);
        });
        let reply = app.futures().counted(&command, work, reply);
        let engine = app.engine();
        if followed {
            let (events, mut told) = mpsc::unbounded_channel();
            engine.stream(command, reply, events);
            let prompt = self.replies.len();
            let told = poll_fn(move |cx| told.poll_recv(cx));
            self.events.push(told.map(move |event| (prompt, event)).boxed());
        } else {
            engine.submit(command, reply);
        }
        self.replies.push(outcome);
    }

    /// The next token of any prompt, which it names; `None` when there are no more, for good or bad.
    pub async fn next(&mut self) -> Option<(usize, TokenEvent)> {
        self.events.next().await
    }

    /// Every prompt's outcome.
    ///
    /// # Errors
    /// The first failure; the other prompts are cancelled.
    pub async fn outputs(mut self) -> Result<Vec<SampleOutput>> {
        let mut outputs = Vec::new();
        for (reply, running) in std::mem::take(&mut self.replies).into_iter().zip(&mut self.running) {
            let outcome = reply.await.map_err(|_| Error::server("the engine dropped the request"))?;
            running.ended = true;
            match outcome? {
                Outcome::Sampled(output) => outputs.push(output),
                other => return Err(Error::server(format!("a sample was answered with {other:?}"))),
            }
        }
        Ok(outputs)
    }
}

/// How many logprobs with their alternatives the answer may hold.
fn logprobs(request: &SampleRequest) -> usize {
    let rows = |tokens: usize, k: usize| if k > 0 { tokens.saturating_mul(k + 1) } else { 0 };
    let drawn = request.num_samples.saturating_mul(request.params.max_tokens);
    rows(request.prompt.len(), request.topk_prompt_logprobs).saturating_add(rows(drawn, request.topk_sample_logprobs))
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::api::inference::settings::Settings;
    use crate::api::inference::testing::{start, token};
    use crate::api::testing::{self, owner};
    use crate::command::StopReason;
    use crate::config::quotas::Quotas;
    use crate::engine::handle::Message;

    #[tokio::test]
    async fn tokens_are_told_with_their_prompt_and_the_outcome_follows() {
        let (app, engine) = testing::app().await;
        let (mut jobs, submitted) = start(&app, 2, true, &engine).await;
        for (i, s) in submitted.into_iter().enumerate() {
            s.events.as_ref().unwrap().send(token(i as u32, Some(StopReason::Stop))).unwrap();
            (s.reply)(Ok(Outcome::Sampled(SampleOutput::default())));
        }
        let mut told = [jobs.next().await.unwrap(), jobs.next().await.unwrap()];
        told.sort_by_key(|(prompt, _)| *prompt);
        assert_eq!(told.iter().map(|(p, e)| (*p, e.token)).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
        assert_eq!(jobs.next().await, None);
        assert_eq!(jobs.outputs().await.unwrap().len(), 2);
        assert!(engine.try_recv().is_err(), "what has ended is not cancelled");
    }

    #[tokio::test]
    async fn who_goes_away_cancels_and_gives_the_room_back() {
        let (app, engine) = testing::app().await;
        let (jobs, submitted) = start(&app, 1, false, &engine).await;
        drop(jobs);
        let Command::Sample { origin, .. } = &submitted[0].command else { panic!("no sample") };
        assert!(matches!(engine.try_recv(), Ok(Message::Cancel(promise)) if promise == origin.promise));
        let mut alone = app.futures().admission().enter(&owner()).unwrap();
        assert!(alone.grow(app.limits().pending_bytes).is_ok());
    }

    #[tokio::test]
    async fn prompts_are_taken_out_of_the_rate_together_or_not_at_all() {
        let (app, engine) = testing::app().await;
        app.futures().accounts().set(owner(), Quotas { requests_per_minute: Some(2), ..Quotas::default() });
        let used = || app.futures().pace().used(&owner()).requests;
        drop(start(&app, 1, false, &engine).await);
        assert!(matches!(engine.try_recv(), Ok(Message::Cancel(_))));
        let target = app.target(&owner(), "tiny").await.unwrap();
        let request = Settings::default().request(&app, &target, &[1], None).unwrap();
        let permit = app.futures().admission().enter(&owner()).unwrap();
        let refused = Jobs::start(&app, &owner(), &target, vec![request; 2], permit, false).err().unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(engine.try_recv().is_err(), "no prompt was submitted");
        assert_eq!(used(), Some(1), "and none was paid for");
        app.futures().pace().take_back(&owner(), 0);
        assert_eq!(start(&app, 3, false, &engine).await.1.len(), 3, "more than a minute's worth, out of all of it");
        assert_eq!(used(), Some(3));
    }

    #[tokio::test]
    async fn a_failure_is_told_and_so_is_a_lost_reply() {
        let (app, engine) = testing::app().await;
        let (jobs, mut submitted) = start(&app, 2, false, &engine).await;
        (submitted.remove(0).reply)(Err(Error::user("no room")));
        assert_eq!(jobs.outputs().await.unwrap_err().message, "no room");
        assert!(matches!(engine.try_recv(), Ok(Message::Cancel(_))), "the other prompt is cancelled");
        let (jobs, submitted) = start(&app, 1, false, &engine).await;
        drop(submitted);
        assert!(jobs.outputs().await.unwrap_err().message.contains("dropped"));
    }

    #[tokio::test]
    async fn an_answer_too_large_for_memory_is_refused_before_the_work() {
        let (app, engine) = testing::app().await;
        let target = app.target(&owner(), "tiny").await.unwrap();
        let one = Settings::default().request(&app, &target, &[1; 7], None).unwrap();
        let request = SampleRequest { topk_prompt_logprobs: 99_999, topk_sample_logprobs: 0, ..one };
        assert_eq!(logprobs(&request), 700_000);
        let start = |requests| {
            let permit = app.futures().admission().enter(&owner()).unwrap();
            Jobs::start(&app, &owner(), &target, requests, permit, false)
        };
        assert!(start(vec![request.clone()]).is_ok());
        assert!(start(vec![request; 2]).is_err());
        drop(engine);
    }
}
