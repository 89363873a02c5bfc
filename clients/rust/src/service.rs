//! The way in: open a session, create training and sampling clients.

use std::sync::Arc;

use reqwest::Method;

use crate::error::Result;
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
use crate::types::sessions::{CreateSessionRequest, FinishReason, FinishSessionRequest};
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
        }
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

/// Cheap to clone; all clones and the clients made by them share one session.
#[derive(Clone)]
pub struct ServiceClient {
    session: Arc<Session>,
}

impl ServiceClient {
    /// Opens a session and keeps it alive in the background. Needs a tokio runtime.
    pub async fn connect(options: ClientOptions) -> Result<Self> {
        let transport = Transport::new(&options.base_url, &options.api_key)?;
        let request = CreateSessionRequest {
            tags: options.tags,
            user_metadata: Some(options.user_metadata),
            sdk_version: PROTOCOL_VERSION.into(),
            project_id: options.project_id,
            display_name: options.display_name,
        };
        Ok(Self { session: Arc::new(Session::open(transport, &request).await?) })
    }

    pub fn session_id(&self) -> &str {
        &self.session.id
    }

    /// Lists, checkpoint management, look-ups.
    pub fn rest(&self) -> RestClient {
        RestClient::new(self.session.transport.clone())
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
        self.create_from_state(path, false).await
    }

    /// A new run that goes on where the checkpoint was saved, optimiser included.
    pub async fn create_training_client_from_state_with_optimizer(&self, path: &str) -> Result<TrainingClient> {
        self.create_from_state(path, true).await
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

    async fn create_from_state(&self, path: &str, optimizer: bool) -> Result<TrainingClient> {
        let model_seq_id = self.session.next_model_seq_id();
        let request = LoadWeightsRequest {
            session_id: Some(self.session.id.clone()),
            model_seq_id: Some(model_seq_id),
            path: path.into(),
            optimizer,
            ..Default::default()
        };
        let promise: UntypedApiFuture = self.session.transport.post("/load_weights", &request).await?;
        let _: LoadWeightsResponse = self.future(promise).result().await?;
        // The run's id is fixed by the protocol (§7.8), the answer need not name it.
        TrainingClient::open(self.session.clone(), format!("{}:train:{model_seq_id}", self.session.id)).await
    }

    fn future<T: crate::future::PromiseResult>(&self, promise: UntypedApiFuture) -> ApiFuture<T> {
        ApiFuture::single(self.session.transport.clone(), promise.request_id)
    }
}
