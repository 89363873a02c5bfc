//! A session: its counters and its heartbeat (protocol ch. 3 and 5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Method;
use tokio::task::AbortHandle;

use crate::error::Result;
use crate::login::Login;
use crate::transport::{Call, PROTOCOL_VERSION, Transport};
use crate::types::service::{ClientConfigRequest, ClientConfigResponse, ClientDynamicConfigResponse};
use crate::types::sessions::{CreateSessionRequest, CreateSessionResponse, SessionHeartbeatRequest};

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Shared by every client of one `ServiceClient`; the heartbeat ends with the last of them.
pub(crate) struct Session {
    pub transport: Arc<Transport>,
    pub id: String,
    pub config: ClientConfigResponse,
    /// Whether the server wants to hear of samples that nobody waits for any more.
    pub cancels_samples: bool,
    /// Where the session's things belong.
    pub project_id: Option<String>,
    next_model: AtomicU64,
    next_sampler: AtomicU64,
    heartbeat: AbortHandle,
}

impl Session {
    /// Fetches the flags, opens the session and starts its heartbeat. Needs a tokio runtime.
    pub async fn open(transport: Transport, api_key: &str, request: &CreateSessionRequest) -> Result<Self> {
        let version = ClientConfigRequest { sdk_version: PROTOCOL_VERSION.into() };
        let config: ClientConfigResponse = transport.post("/client/config", &version).await?;
        let login =
            if config.pjwt_auth_enabled == Some(true) { Some(Login::new(&transport, api_key).await?) } else { None };
        let dynamic = match transport.post::<ClientDynamicConfigResponse>("/client/dynamic_config", &version).await {
            Err(e) if e.status() == Some(404) => ClientDynamicConfigResponse::default(),
            answered => answered?,
        };
        let created: CreateSessionResponse = transport.post("/create_session", request).await?;
        log_messages(&created);
        let transport = Arc::new(transport);
        let heartbeat = tokio::spawn(beat(transport.clone(), created.session_id.clone(), login)).abort_handle();
        Ok(Self {
            transport,
            id: created.session_id,
            config,
            cancels_samples: dynamic.sample_cancel_enabled == Some(true),
            project_id: request.project_id.clone(),
            next_model: AtomicU64::new(0),
            next_sampler: AtomicU64::new(0),
            heartbeat,
        })
    }

    pub fn next_model_seq_id(&self) -> u64 {
        self.next_model.fetch_add(1, Ordering::Relaxed)
    }

    pub fn next_sampling_session_seq_id(&self) -> u64 {
        self.next_sampler.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

/// Errors never end it; 410 does: the session is finished. The token is kept fresh on the way.
async fn beat(transport: Arc<Transport>, session_id: String, mut login: Option<Login>) {
    let request = SessionHeartbeatRequest { session_id };
    loop {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        if let Some(login) = &mut login {
            login.renew(&transport).await;
        }
        let Ok(call) = Call::json(Method::POST, "/session_heartbeat", &request) else { return };
        match transport.once(&call, &uuid::Uuid::new_v4().to_string()).await {
            Ok(answer) if answer.status == 410 => return,
            Ok(answer) if answer.status < 400 => {}
            Ok(answer) => tracing::debug!(status = answer.status, "heartbeat refused"),
            Err(error) => tracing::debug!(%error, "heartbeat failed"),
        }
    }
}

fn log_messages(created: &CreateSessionResponse) {
    if let Some(message) = &created.info_message {
        tracing::info!("{message}");
    }
    if let Some(message) = &created.warning_message {
        tracing::warn!("{message}");
    }
    if let Some(message) = &created.error_message {
        tracing::error!("{message}");
    }
}
