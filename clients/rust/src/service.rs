//! The way in: open a session, create training and sampling clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;

use crate::error::{Error, Result};
use crate::future::ApiFuture;
use crate::rest::RestClient;
use crate::sampling::SamplingClient;
use crate::session::Session;
use crate::training::TrainingClient;
use crate::transport::{Call, PROTOCOL_VERSION, Transport};
use crate::types::futures::UntypedApiFuture;
use crate::types::lenient::Metadata;
use crate::types::sampling::{CreateSamplingSessionRequest, CreateSamplingSessionResponse};
use crate::types::service::GetServerCapabilitiesResponse;
use crate::types::sessions::{
    CreateSessionRequest, FinishReason, FinishSessionRequest, SessionHeartbeatRequest, SessionHeartbeatResponse,
};
use crate::types::training::{CreateModelRequest, CreateModelResponse, LoraConfig, OptimizerConfig};
use crate::types::weights::{LoadWeightsRequest, LoadWeightsResponse};

/// Whom to speak to, and as whom.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Without `/api/v1`; may have a path prefix.
    pub base_url: String,
    /// `tml-…`.
    pub api_key: String,
    pub tags: Vec<String>,
    pub user_metadata: Metadata,
    pub project_id: Option<String>,
    pub display_name: Option<String>,
    /// A call that cannot be made or fails for the moment is repeated for so long; `None` = five minutes, as the SDK does.
    pub retry_for: Option<Duration>,
}

impl ClientOptions {
    pub fn new(base_url: impl Into<String>, api_key: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            api_key: api_key.into(),
            tags: Vec::new(),
            user_metadata: Metadata::new(),
            project_id: None,
            display_name: None,
            retry_for: None,
        }
    }

    pub(crate) fn transport(&self) -> Result<Transport> {
        let transport = Transport::new(&self.base_url, &self.api_key)?;
        Ok(match self.retry_for {
            Some(limit) => transport.trying_for(limit),
            None => transport,
        })
    }

    /// `TINKER_BASE_URL` (default: a local server on port 8000), `TINKER_API_KEY` (default: `tml-local`),
    /// `TINKER_PROJECT_ID`, `TINKER_TAGS` (comma-separated).
    #[expect(
        clippy::disallowed_methods,
        reason = "the client's own settings are these variables, as in the Python SDK"
    )]
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).ok().filter(|v: &String| !v.is_empty());
        let base_url = var("TINKER_BASE_URL").unwrap_or_else(|| "http://127.0.0.1:8000".into());
        let tags = var("TINKER_TAGS").unwrap_or_default();
        Self {
            tags: tags.split(',').map(str::trim).filter(|t| !t.is_empty()).map(Into::into).collect(),
            project_id: var("TINKER_PROJECT_ID"),
            ..Self::new(base_url, var("TINKER_API_KEY").unwrap_or_else(|| "tml-local".into()))
        }
    }
}

/// What is new about a run that starts from a checkpoint; nothing of it is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FromState {
    /// Go on where the checkpoint was saved: optimiser included.
    pub optimizer: bool,
    pub user_metadata: Option<Metadata>,
    /// Another served name of the checkpoint's base model.
    pub base_model: Option<String>,
    /// Of the account that the checkpoint belongs to.
    pub weights_access_token: Option<String>,
}

/// Cheap to clone; all clones and the clients made by them share one session.
///
/// ```no_run
/// # async fn example() -> tinderbox_client::Result<()> {
/// use tinderbox_client::types::{sessions::FinishReason, training::LoraConfig};
/// use tinderbox_client::{ClientOptions, ServiceClient};
///
/// let service = ServiceClient::connect(ClientOptions::from_env()).await?;
/// let training = service.create_lora_training_client("my/model", LoraConfig { rank: 16, ..Default::default() }).await?;
/// let base = service.create_sampling_client(Some("my/model"), None).await?;
/// println!("{} {}", training.model_id(), base.sampler_id());
/// service.close(FinishReason::Success, None).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServiceClient {
    session: Arc<Session>,
}

impl ServiceClient {
    /// Opens a session and keeps it alive in the background. Needs a tokio runtime.
    pub async fn connect(options: ClientOptions) -> Result<Self> {
        let transport = options.transport()?;
        let request = CreateSessionRequest {
            tags: options.tags,
            user_metadata: Some(options.user_metadata),
            sdk_version: PROTOCOL_VERSION.into(),
            project_id: options.project_id,
            display_name: options.display_name,
        };
        Ok(Self { session: Arc::new(Session::open(transport, &options.api_key, &request).await?) })
    }

    pub fn session_id(&self) -> &str {
        &self.session.id
    }

    /// Lists, checkpoint management, look-ups.
    pub fn rest(&self) -> RestClient {
        RestClient::new(self.session.transport.clone())
    }

    /// Says that the session is still wanted, as is done every ten seconds in the background.
    pub async fn heartbeat(&self) -> Result<SessionHeartbeatResponse> {
        let request = SessionHeartbeatRequest { session_id: self.session.id.clone() };
        self.session.transport.post("/session_heartbeat", &request).await
    }

    pub async fn get_server_capabilities(&self) -> Result<GetServerCapabilitiesResponse> {
        self.rest().get_server_capabilities().await
    }

    /// A new run that trains an adapter on `base_model`.
    pub async fn create_lora_training_client(&self, base_model: &str, lora: LoraConfig) -> Result<TrainingClient> {
        self.create_training_client(base_model, Some(lora), None).await
    }

    /// A new run; `lora: None` trains every weight of a private copy.
    pub async fn create_training_client(
        &self,
        base_model: &str,
        lora: Option<LoraConfig>,
        user_metadata: Option<Metadata>,
    ) -> Result<TrainingClient> {
        let request = CreateModelRequest {
            session_id: self.session.id.clone(),
            model_seq_id: self.session.next_model_seq_id(),
            base_model: base_model.into(),
            user_metadata,
            lora_config: lora,
            optimizer_config: OptimizerConfig::default(),
        };
        let promise: UntypedApiFuture = self.session.transport.post("/create_model", &request).await?;
        let created: CreateModelResponse = self.future(promise).result().await?;
        TrainingClient::open(self.session.clone(), created.model_id).await
    }

    /// A new run from a training checkpoint's weights, with a fresh optimiser.
    pub async fn create_training_client_from_state(&self, path: &str) -> Result<TrainingClient> {
        self.create_training_client_from(path, FromState::default()).await
    }

    /// A new run that goes on where the checkpoint was saved, optimiser included.
    pub async fn create_training_client_from_state_with_optimizer(&self, path: &str) -> Result<TrainingClient> {
        self.create_training_client_from(path, FromState { optimizer: true, ..Default::default() }).await
    }

    pub async fn create_training_client_from(&self, path: &str, from: FromState) -> Result<TrainingClient> {
        let FromState { optimizer, user_metadata, base_model, weights_access_token } = from;
        let model_seq_id = self.session.next_model_seq_id();
        let request = LoadWeightsRequest {
            session_id: Some(self.session.id.clone()),
            model_seq_id: Some(model_seq_id),
            path: path.into(),
            optimizer,
            user_metadata,
            base_model,
            weights_access_token,
            ..Default::default()
        };
        let promise: UntypedApiFuture = self.session.transport.post("/load_weights", &request).await?;
        let _: LoadWeightsResponse = self.future(promise).result().await?;
        // The run's id is fixed by the protocol (§7.8), the answer need not name it.
        TrainingClient::open(self.session.clone(), format!("{}:train:{model_seq_id}", self.session.id)).await
    }

    /// Copies a checkpoint into this client's project, where it outlives the original; returns the copy's path.
    pub async fn copy_weights(&self, path: &str, ttl_seconds: Option<i64>) -> Result<String> {
        let project = self.session.project_id.as_deref();
        let project =
            project.ok_or_else(|| Error::Usage("copies need a project: set ClientOptions::project_id".into()))?;
        self.rest().copy_weights(path, project, ttl_seconds, None).await
    }

    /// Downloads a checkpoint's weights into `dir` in PEFT's or Transformers' layout; returns the files. A training
    /// checkpoint is exported first, and the export deleted again.
    pub async fn download_checkpoint(&self, path: &str, dir: &Path) -> Result<Vec<PathBuf>> {
        let rest = self.rest();
        if path.contains("/external_weights/") {
            return rest.download_external_weights(path, dir).await;
        }
        let training = self.create_training_client_from_state(path).await?;
        let export = training.save_weights_external("download", Some(3600), None).await?.await?.path;
        let files = rest.download_external_weights(&export, dir).await;
        rest.delete_checkpoint_from_tinker_path(&export).await?;
        files
    }

    /// A sampler of a base model, of a checkpoint (`tinker://…`), or of a checkpoint whose base model is known.
    pub async fn create_sampling_client(
        &self,
        base_model: Option<&str>,
        model_path: Option<&str>,
    ) -> Result<SamplingClient> {
        let request = CreateSamplingSessionRequest {
            session_id: self.session.id.clone(),
            sampling_session_seq_id: self.session.next_sampling_session_seq_id(),
            base_model: base_model.map(Into::into),
            model_path: model_path.map(Into::into),
        };
        let created: CreateSamplingSessionResponse =
            self.session.transport.post("/create_sampling_session", &request).await?;
        Ok(SamplingClient::new(self.session.clone(), created.sampling_session_id))
    }

    /// Ends the session. Its clients can do nothing more; runs and checkpoints stay.
    pub async fn close(&self, reason: FinishReason, detail: Option<String>) -> Result<()> {
        let path = format!("/sessions/{}/finish", self.session.id);
        let request = FinishSessionRequest { reason, detail };
        self.session.transport.send_only(&Call::json(Method::POST, &path, &request)?).await
    }

    fn future<T: crate::future::PromiseResult>(&self, promise: UntypedApiFuture) -> ApiFuture<T> {
        ApiFuture::single(self.session.transport.clone(), promise.request_id)
    }
}
