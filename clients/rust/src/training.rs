//! Trains one run: requests take effect in the order in which they are submitted, results are awaited apart from that.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use serde::Serialize;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::chunking::{self, Limits};
use crate::combine::combine;
use crate::custom;
use crate::error::{Error, Result};
use crate::future::{ApiFuture, PromiseResult};
use crate::proto;
use crate::sampling::SamplingClient;
use crate::session::Session;
use crate::transport::{Call, Transport};
use crate::types::datum::Datum;
use crate::types::futures::UntypedApiFuture;
use crate::types::lenient::Metadata;
use crate::types::training::{
    AdamParams, ForwardBackwardInput, ForwardBackwardOutput, ForwardBackwardRequest, GetInfoRequest, GetInfoResponse,
    LossConfigValue, LossFnConfig, OptimStepRequest, OptimStepResponse, UnloadModelRequest, UnloadModelResponse,
};
use crate::types::weights::{
    LoadWeightsRequest, LoadWeightsResponse, SamplingClientKind, SaveWeightsExternalRequest,
    SaveWeightsExternalResponse, SaveWeightsForSamplerRequest, SaveWeightsForSamplerResponse, SaveWeightsRequest,
    SaveWeightsResponse,
};

/// Cheap to clone; clones share the run's order.
#[derive(Clone)]
pub struct TrainingClient {
    session: Arc<Session>,
    info: Arc<GetInfoResponse>,
    /// The last `seq_id` given out. Held from taking a number until its request is accepted.
    turn: Arc<Mutex<u64>>,
}

/// A loss and its settings: `"cross_entropy".into()`, or `Loss::new("ppo").with("clip_high_threshold", 1.3)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    pub name: String,
    pub config: LossFnConfig,
}

impl Loss {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), config: LossFnConfig::new() }
    }

    pub fn with(mut self, key: &str, value: f64) -> Self {
        self.config.insert(key.into(), LossConfigValue::Number(value));
        self
    }
}

impl From<&str> for Loss {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// What to say about a checkpoint that is saved; nothing of it is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// One hour to ten years; `None` = it never expires.
    pub ttl_seconds: Option<i64>,
    /// Replace a training checkpoint of the same name instead of failing.
    pub overwrite: bool,
    pub user_metadata: Option<Metadata>,
}

/// Every method returns as soon as the server has accepted the request; await the future for the result.
///
/// ```no_run
/// # async fn example(training: tinderbox_client::TrainingClient) -> tinderbox_client::Result<()> {
/// use tinderbox_client::types::{datum::Datum, training::AdamParams};
///
/// let data = vec![Datum::supervised(&[11, 22, 33, 44], [0.0, 1.0, 1.0])];
/// // Both requests are on their way before the first result is awaited.
/// let loss = training.forward_backward(data, "cross_entropy").await?;
/// let step = training.optim_step(AdamParams { learning_rate: 1e-4, ..Default::default() }).await?;
/// println!("loss {}", loss.await?.metrics["loss:sum"]);
/// step.await?;
///
/// let saved = training.save_state("step_1", None).await?.await?;
/// let sampler = training.save_weights_and_get_sampling_client().await?;
/// println!("{} {}", saved.path, sampler.sampler_id());
/// # Ok(())
/// # }
/// ```
impl TrainingClient {
    pub(crate) async fn open(session: Arc<Session>, model_id: String) -> Result<Self> {
        let info = session.transport.post("/get_info", &GetInfoRequest { model_id }).await?;
        Ok(Self { session, info: Arc::new(info), turn: Arc::default() })
    }

    /// The run's id, `SESSION:train:N`.
    pub fn model_id(&self) -> &str {
        &self.info.model_id
    }

    /// Asks the server about the run.
    pub async fn get_info(&self) -> Result<GetInfoResponse> {
        self.session.transport.post("/get_info", &GetInfoRequest { model_id: self.info.model_id.clone() }).await
    }

    /// Outputs and metrics without touching gradients.
    pub async fn forward(&self, data: Vec<Datum>, loss: impl Into<Loss>) -> Result<ApiFuture<ForwardBackwardOutput>> {
        self.run_forward_backward(data, loss.into(), true).await
    }

    /// Adds the gradients of the summed loss to those that the next `optim_step` uses.
    pub async fn forward_backward(
        &self,
        data: Vec<Datum>,
        loss: impl Into<Loss>,
    ) -> Result<ApiFuture<ForwardBackwardOutput>> {
        self.run_forward_backward(data, loss.into(), false).await
    }

    /// Trains on a loss of one's own: `loss` gets the logprobs of each datum's targets, and gives its value and its
    /// derivative by each logprob, shaped alike. The datums need `target_tokens` alone. Returns when the gradients are
    /// submitted; the second half is the forward pass's output under the loss's own value, `loss:sum`.
    ///
    /// ```no_run
    /// # async fn example(training: tinderbox_client::TrainingClient) -> tinderbox_client::Result<()> {
    /// use tinderbox_client::types::datum::Datum;
    ///
    /// let data = vec![Datum::supervised(&[11, 22, 33], [1.0, 1.0])];
    /// // The mean of the squared logprobs.
    /// let squares = |logprobs: &[Vec<f32>]| {
    ///     let n = logprobs.iter().map(Vec::len).sum::<usize>() as f32;
    ///     let value = logprobs.iter().flatten().map(|lp| lp * lp).sum::<f32>() / n;
    ///     let slopes = logprobs.iter().map(|d| d.iter().map(|lp| 2.0 * lp / n).collect()).collect();
    ///     (value.into(), slopes)
    /// };
    /// let (backward, output) = training.forward_backward_custom(data, squares).await?;
    /// println!("loss {}", output.metrics["loss:sum"]);
    /// backward.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn forward_backward_custom(
        &self,
        data: Vec<Datum>,
        loss: impl FnOnce(&[Vec<f32>]) -> (f64, Vec<Vec<f32>>),
    ) -> Result<(ApiFuture<ForwardBackwardOutput>, ForwardBackwardOutput)> {
        let mut output = self.forward(custom::forward_data(&data)?, "cross_entropy").await?.await?;
        let logprobs = custom::logprobs(&output, data.len())?;
        let (value, slopes) = loss(&logprobs);
        let backward = self.forward_backward(custom::backward_data(data, &logprobs, slopes)?, "cross_entropy").await?;
        output.metrics.insert("loss:sum".into(), value);
        Ok((backward, output))
    }

    pub async fn optim_step(&self, adam_params: AdamParams) -> Result<ApiFuture<OptimStepResponse>> {
        let request = |model_id, seq_id| OptimStepRequest {
            model_id,
            seq_id,
            adam_params: Some(adam_params),
            optimizer_params: None,
        };
        self.submit("/optim_step", request).await
    }

    /// Saves weights and optimiser under `name`: training can go on from it.
    pub async fn save_state(&self, name: &str, ttl_seconds: Option<i64>) -> Result<ApiFuture<SaveWeightsResponse>> {
        self.save_state_with(name, SaveOptions { ttl_seconds, ..Default::default() }).await
    }

    pub async fn save_state_with(&self, name: &str, options: SaveOptions) -> Result<ApiFuture<SaveWeightsResponse>> {
        let path = Some(name.into());
        let SaveOptions { ttl_seconds, overwrite, user_metadata } = options;
        let request =
            |model_id, seq_id| SaveWeightsRequest { model_id, seq_id, path, ttl_seconds, overwrite, user_metadata };
        self.submit("/save_weights", request).await
    }

    /// Loads weights into this run, with a fresh optimiser. Servers may allow it only as the first request.
    pub async fn load_state(&self, path: &str) -> Result<ApiFuture<LoadWeightsResponse>> {
        self.load(path, false).await
    }

    /// As `load_state`, optimiser included.
    pub async fn load_state_with_optimizer(&self, path: &str) -> Result<ApiFuture<LoadWeightsResponse>> {
        self.load(path, true).await
    }

    /// Saves weights to sample from under `name`.
    pub async fn save_weights_for_sampler(
        &self,
        name: &str,
        ttl_seconds: Option<i64>,
    ) -> Result<ApiFuture<SaveWeightsForSamplerResponse>> {
        let path = Some(name.into());
        let request = |model_id, seq_id| SaveWeightsForSamplerRequest {
            model_id,
            seq_id,
            path,
            ttl_seconds,
            ..Default::default()
        };
        self.submit("/save_weights_for_sampler", request).await
    }

    /// A sampler of the weights as they are at this point of the run's order, whatever is trained later.
    pub async fn save_weights_and_get_sampling_client(&self) -> Result<SamplingClient> {
        self.ephemeral(SamplingClientKind::Snapshot).await
    }

    /// A sampler of the weights as they are at this point of the run's order or later: it moves on with each further
    /// save of this kind.
    pub async fn save_weights_and_get_inflight_sampling_client(&self) -> Result<SamplingClient> {
        self.ephemeral(SamplingClientKind::Inflight).await
    }

    async fn ephemeral(&self, kind: SamplingClientKind) -> Result<SamplingClient> {
        let sampling_session_seq_id = Some(self.session.next_sampling_session_seq_id());
        let request = |model_id, seq_id| SaveWeightsForSamplerRequest {
            model_id,
            seq_id,
            sampling_session_seq_id,
            kind,
            ..Default::default()
        };
        let saved: SaveWeightsForSamplerResponse = self.submit("/save_weights_for_sampler", request).await?.await?;
        let id =
            saved.sampling_session_id.ok_or_else(|| Error::Decode("an ephemeral save without a sampler".into()))?;
        Ok(SamplingClient::new(self.session.clone(), id))
    }

    /// Writes weights for download, encrypted when `age_recipients` are given.
    pub async fn save_weights_external(
        &self,
        name: &str,
        ttl_seconds: Option<i64>,
        age_recipients: Option<Vec<String>>,
    ) -> Result<ApiFuture<SaveWeightsExternalResponse>> {
        let path = name.into();
        let request = |model_id, seq_id| SaveWeightsExternalRequest {
            model_id,
            seq_id,
            path,
            ttl_seconds,
            age_encryption_recipients: age_recipients,
        };
        self.submit("/save_weights_external", request).await
    }

    /// Ends the run; its checkpoints stay.
    pub async fn unload(&self) -> Result<ApiFuture<UnloadModelResponse>> {
        let request = UnloadModelRequest { model_id: self.info.model_id.clone() };
        let promise: UntypedApiFuture = self.session.transport.post("/unload_model", &request).await?;
        Ok(ApiFuture::single(self.session.transport.clone(), promise.request_id))
    }

    async fn load(&self, path: &str, optimizer: bool) -> Result<ApiFuture<LoadWeightsResponse>> {
        let path = path.into();
        let request = |model_id, seq_id| LoadWeightsRequest {
            model_id: Some(model_id),
            seq_id,
            path,
            optimizer,
            ..Default::default()
        };
        self.submit("/load_weights", request).await
    }

    async fn run_forward_backward(
        &self,
        data: Vec<Datum>,
        loss: Loss,
        forward_only: bool,
    ) -> Result<ApiFuture<ForwardBackwardOutput>> {
        let chunks = chunking::split(data, &Limits::from(&self.session.config));
        if chunks.is_empty() {
            return Err(Error::Usage("forward and forward_backward need at least one datum".into()));
        }
        let mut turn = self.turn.clone().lock_owned().await;
        let mut bodies = Vec::with_capacity(chunks.len());
        for (seq_id, data) in (*turn + 1..).zip(chunks) {
            let input = ForwardBackwardInput { data, loss_fn: loss.name.clone(), loss_fn_config: loss.config.clone() };
            let model_id = self.info.model_id.clone();
            let request =
                ForwardBackwardRequest { model_id, seq_id: Some(seq_id), forward_backward_input: input, forward_only };
            let message = proto::ForwardBackwardRequest::try_from(&request).map_err(|e| Error::Usage(e.0))?;
            bodies.push(Bytes::from(message.encode_to_vec()));
        }
        *turn += bodies.len() as u64;
        let parallel = self.session.config.parallel_fwdbwd_chunks != Some(false);
        let ids = in_turn(turn, post_protobuf(self.session.transport.clone(), bodies, parallel)).await?;
        Ok(ApiFuture::chunked(self.session.transport.clone(), ids, combine))
    }

    /// Takes the next number, builds the request with it and sends it before anyone takes another.
    async fn submit<R, T>(
        &self,
        path: &'static str,
        request: impl FnOnce(String, Option<u64>) -> R,
    ) -> Result<ApiFuture<T>>
    where
        R: Serialize + Send + Sync + 'static,
        T: PromiseResult,
    {
        let mut turn = self.turn.clone().lock_owned().await;
        *turn += 1;
        let body = request(self.info.model_id.clone(), Some(*turn));
        let transport = self.session.transport.clone();
        let promise = async move { transport.post::<UntypedApiFuture>(path, &body).await };
        let promise = in_turn(turn, promise).await?;
        Ok(ApiFuture::single(self.session.transport.clone(), promise.request_id))
    }
}

/// Runs a submission to its end even when the caller stops waiting: a number that was taken must be used, or the
/// server would wait for it.
async fn in_turn<T: Send + 'static>(
    turn: OwnedMutexGuard<u64>,
    submission: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let task = tokio::spawn(async move {
        let result = submission.await;
        drop(turn);
        result
    });
    task.await.map_err(|e| Error::Connection(format!("the submission was stopped: {e}")))?
}

/// The chunks' promises, in order. In parallel the first chunk goes last: the server then has the rest at hand when the
/// run's turn comes (protocol §11.4).
async fn post_protobuf(transport: Arc<Transport>, bodies: Vec<Bytes>, parallel: bool) -> Result<Vec<String>> {
    let mut bodies = bodies.into_iter();
    let mut ids = Vec::with_capacity(bodies.len());
    if parallel {
        let first = bodies.next();
        let rest: Vec<_> = bodies.map(|body| tokio::spawn(post_chunk(transport.clone(), body))).collect();
        let mut later = Vec::with_capacity(rest.len());
        for task in rest {
            later.push(task.await.map_err(|e| Error::Connection(format!("a chunk was not sent: {e}")))?);
        }
        // Sent also when a later one was refused: its number is taken.
        if let Some(body) = first {
            ids.push(post_chunk(transport, body).await?);
        }
        for id in later {
            ids.push(id?);
        }
        return Ok(ids);
    }
    for body in bodies {
        ids.push(post_chunk(transport.clone(), body).await?);
    }
    Ok(ids)
}

async fn post_chunk(transport: Arc<Transport>, body: Bytes) -> Result<String> {
    let answer = transport.send(&Call::protobuf("/forward_backward", body)).await?;
    let promise: UntypedApiFuture =
        serde_json::from_slice(&answer.body).map_err(|e| Error::Decode(format!("/forward_backward: {e}")))?;
    Ok(promise.request_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_by_name_or_with_settings() {
        assert_eq!(Loss::from("ppo"), Loss::new("ppo"));
        let loss = Loss::new("ppo").with("clip_low_threshold", 0.9);
        assert_eq!(loss.config["clip_low_threshold"], LossConfigValue::Number(0.9));
    }

    #[tokio::test]
    async fn a_submission_outlives_its_caller_and_holds_its_turn() {
        let turn = Arc::new(Mutex::new(0u64));
        let (started, wait) = tokio::sync::oneshot::channel::<()>();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let guard = turn.clone().lock_owned().await;
        let submission = async move {
            started.send(()).map_err(|()| Error::Usage("nobody waits".into()))?;
            finished.await.map_err(|e| Error::Usage(e.to_string()))
        };
        let caller = tokio::spawn(in_turn(guard, submission));
        wait.await.unwrap();
        caller.abort();
        assert!(caller.await.is_err());
        assert!(turn.try_lock().is_err(), "the turn ended with the caller");
        finish.send(()).unwrap();
        drop(turn.lock().await);
    }
}
