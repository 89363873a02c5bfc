//! Samples from a base model, a checkpoint or a snapshot (protocol ch. 12).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Method;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::future::retrieve;
use crate::session::Session;
use crate::transport::{Call, backoff};
use crate::types::futures::{CancelFutureRequest, UntypedApiFuture};
use crate::types::model_input::ModelInput;
use crate::types::sampling::{GetSamplerResponse, SampleRequest, SampleResponse, SamplingParams};

/// Samples of one client that are under way at once.
const MAX_CONCURRENT: usize = 2000;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Prompts of more estimated bytes than this wait longer when the server asks for patience.
const LARGE_PROMPT: usize = 128 << 10;

/// Cheap to clone. Samples have no order: any number may be awaited at once. A sample whose future is dropped is
/// cancelled on the server, where that wants to know.
///
/// ```no_run
/// # async fn example(sampler: tinderbox_client::SamplingClient) -> tinderbox_client::Result<()> {
/// use tinderbox_client::types::{model_input::ModelInput, sampling::SamplingParams};
///
/// let prompt = ModelInput::from_ints([11, 22, 33]);
/// let params = SamplingParams { max_tokens: Some(16), temperature: 0.7, ..Default::default() };
/// for sequence in sampler.sample(prompt.clone(), 4, params).await?.sequences {
///     println!("{:?} {:?}", sequence.tokens, sequence.logprobs);
/// }
/// println!("{:?}", sampler.compute_logprobs(prompt).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SamplingClient {
    session: Arc<Session>,
    sampler_id: String,
    next_seq_id: Arc<AtomicU64>,
    slots: Arc<Semaphore>,
}

impl SamplingClient {
    pub(crate) fn new(session: Arc<Session>, sampler_id: String) -> Self {
        let slots = session.config.sample_max_concurrent_requests.map_or(MAX_CONCURRENT, |n| n.max(1) as usize);
        let slots = Arc::new(Semaphore::new(slots.min(Semaphore::MAX_PERMITS)));
        Self { session, sampler_id, next_seq_id: Arc::default(), slots }
    }

    pub fn sampler_id(&self) -> &str {
        &self.sampler_id
    }

    /// `num_samples` continuations of `prompt`.
    pub async fn sample(
        &self,
        prompt: ModelInput,
        num_samples: usize,
        params: SamplingParams,
    ) -> Result<SampleResponse> {
        let mut request = SampleRequest::new(&self.sampler_id, prompt, params);
        request.num_samples = num_samples as i64;
        self.sample_request(request).await
    }

    /// Log-probability of each prompt token given those before it; `None` for the first.
    pub async fn compute_logprobs(&self, prompt: ModelInput) -> Result<Vec<Option<f32>>> {
        let params = SamplingParams { max_tokens: Some(1), ..Default::default() };
        let mut request = SampleRequest::new(&self.sampler_id, prompt, params);
        request.prompt_logprobs = true;
        let response = self.sample_request(request).await?;
        response.prompt_logprobs.ok_or_else(|| Error::Decode("no prompt_logprobs in the answer".into()))
    }

    /// A sample with every option; sampler and number are filled in. A sample that the server has lost is submitted
    /// anew under the next number.
    pub async fn sample_request(&self, mut request: SampleRequest) -> Result<SampleResponse> {
        let _slot = self.slots.acquire().await.expect("the semaphore is never closed");
        request.sampling_session_id.clone_from(&self.sampler_id);
        for attempt in 0.. {
            request.seq_id = Some(self.next_seq_id.fetch_add(1, Ordering::Relaxed));
            let promise = self.submit(&request).await?;
            let mut cancel = CancelOnDrop { session: self.session.clone(), request_id: Some(promise.request_id) };
            let result = retrieve(&self.session.transport, cancel.request_id.as_deref().unwrap_or_default()).await;
            cancel.request_id = None;
            match result {
                Err(Error::PromiseLost { request_id, detail }) => {
                    tracing::debug!(request_id, detail, "sample lost, submitting it again");
                    tokio::time::sleep(backoff(attempt, LONGEST_PAUSE)).await;
                }
                result => return result,
            }
        }
        unreachable!("the loop ends with a result")
    }

    /// The base model's name and the checkpoint, as the server knows them.
    pub async fn get_sampler(&self) -> Result<GetSamplerResponse> {
        self.session.transport.get(&format!("/samplers/{}", self.sampler_id), &serde_json::json!({})).await
    }

    /// 429 means "slow down": the same request is sent again for as long as it takes.
    async fn submit(&self, request: &SampleRequest) -> Result<UntypedApiFuture> {
        let call = Call::json(Method::POST, "/asample", request)?.with_backpressure();
        let patience = Duration::from_secs(if call.body.len() <= LARGE_PROMPT { 1 } else { 5 });
        loop {
            let key = uuid::Uuid::new_v4().to_string();
            match self.session.transport.once(&call, &key).await {
                Ok(answer) if answer.status == 429 => {
                    tokio::time::sleep(answer.retry_after.unwrap_or(patience)).await;
                }
                Ok(answer) if answer.status < 400 => {
                    return serde_json::from_slice(&answer.body).map_err(|e| Error::Decode(format!("/asample: {e}")));
                }
                Ok(answer) if !answer.is_retryable() => return Err(answer.into_error(&call)),
                _ => return self.session.transport.post("/asample", request).await,
            }
        }
    }
}

/// Tells the server that nobody waits for a sample any more, unless its result has come.
struct CancelOnDrop {
    session: Arc<Session>,
    request_id: Option<String>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(request_id) = self.request_id.take().filter(|_| self.session.cancels_samples) else { return };
        // Outside a runtime the program is ending, and so is the session.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let transport = self.session.transport.clone();
        runtime.spawn(async move {
            let request = CancelFutureRequest { request_id };
            let Ok(call) = Call::json(Method::POST, "/cancel_future", &request) else { return };
            if let Err(error) = transport.send_only(&call).await {
                tracing::debug!(%error, request_id = request.request_id, "sample was not cancelled");
            }
        });
    }
}
