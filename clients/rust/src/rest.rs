//! Lists and look-ups of runs, checkpoints, sessions and samplers, and what can be done to a checkpoint (protocol §6.2).

use std::sync::Arc;

use reqwest::Method;
use serde_json::json;

use crate::error::{Error, Result};
use crate::transport::{Call, Transport};
use crate::types::checkpoints::{
    CheckpointsListResponse, CheckpointsQuery, ExternalWeightsUrlsResponse, RunsQuery, ScopeQuery, SetTtlRequest,
    TrainingRun, TrainingRunsResponse, WeightsInfoRequest, WeightsInfoResponse,
};
use crate::types::sampling::GetSamplerResponse;
use crate::types::service::GetServerCapabilitiesResponse;
use crate::types::sessions::{GetSessionResponse, ListSessionsResponse};

/// Needs no session.
#[derive(Clone)]
pub struct RestClient {
    transport: Arc<Transport>,
}

impl RestClient {
    pub(crate) fn new(transport: Arc<Transport>) -> Self {
        Self { transport }
    }

    /// A client without a session, for management alone.
    pub fn connect(base_url: &str, api_key: &str) -> Result<Self> {
        Ok(Self::new(Arc::new(Transport::new(base_url, api_key)?)))
    }

    pub async fn get_server_capabilities(&self) -> Result<GetServerCapabilitiesResponse> {
        self.transport.get("/get_server_capabilities", &json!({})).await
    }

    pub async fn list_training_runs(&self, query: &RunsQuery) -> Result<TrainingRunsResponse> {
        self.transport.get("/training_runs", query).await
    }

    pub async fn get_training_run(&self, run_id: &str) -> Result<TrainingRun> {
        self.transport.get(&format!("/training_runs/{run_id}"), &ScopeQuery::default()).await
    }

    /// The checkpoints of one run.
    pub async fn list_checkpoints(&self, run_id: &str) -> Result<CheckpointsListResponse> {
        self.transport.get(&format!("/training_runs/{run_id}/checkpoints"), &json!({})).await
    }

    /// The checkpoints of all of the user's runs, newest first.
    pub async fn list_user_checkpoints(&self, query: &CheckpointsQuery) -> Result<CheckpointsListResponse> {
        self.transport.get("/checkpoints", query).await
    }

    pub async fn delete_checkpoint_from_tinker_path(&self, tinker_path: &str) -> Result<()> {
        let path = checkpoint_route(tinker_path)?;
        self.transport.send_only(&Call::empty(Method::DELETE, &path)).await
    }

    /// Makes the checkpoint readable by every account.
    pub async fn publish_checkpoint_from_tinker_path(&self, tinker_path: &str) -> Result<()> {
        let path = format!("{}/publish", checkpoint_route(tinker_path)?);
        self.transport.send_only(&Call::empty(Method::POST, &path)).await
    }

    pub async fn unpublish_checkpoint_from_tinker_path(&self, tinker_path: &str) -> Result<()> {
        let path = format!("{}/publish", checkpoint_route(tinker_path)?);
        self.transport.send_only(&Call::empty(Method::DELETE, &path)).await
    }

    /// Expires the checkpoint `ttl_seconds` from now; `None` = never.
    pub async fn set_checkpoint_ttl_from_tinker_path(&self, tinker_path: &str, ttl_seconds: Option<i64>) -> Result<()> {
        let path = format!("{}/ttl", checkpoint_route(tinker_path)?);
        let request = SetTtlRequest { ttl_seconds: Some(ttl_seconds) };
        self.transport.send_only(&Call::json(Method::PUT, &path, &request)?).await
    }

    /// Download links of an external checkpoint.
    pub async fn get_external_weights_urls(&self, tinker_path: &str) -> Result<ExternalWeightsUrlsResponse> {
        self.transport.get(&format!("{}/external_weights_urls", checkpoint_route(tinker_path)?), &json!({})).await
    }

    pub async fn get_weights_info_by_tinker_path(&self, tinker_path: &str) -> Result<WeightsInfoResponse> {
        self.transport.post("/weights_info", &WeightsInfoRequest { tinker_path: tinker_path.into() }).await
    }

    pub async fn list_sessions(&self, query: &RunsQuery) -> Result<ListSessionsResponse> {
        self.transport.get("/sessions", query).await
    }

    pub async fn get_session(&self, session_id: &str) -> Result<GetSessionResponse> {
        self.transport.get(&format!("/sessions/{session_id}"), &ScopeQuery::default()).await
    }

    pub async fn get_sampler(&self, sampler_id: &str) -> Result<GetSamplerResponse> {
        self.transport.get(&format!("/samplers/{sampler_id}"), &json!({})).await
    }
}

/// `tinker://RUN/KIND/NAME` → `/training_runs/RUN/checkpoints/KIND/NAME`.
fn checkpoint_route(tinker_path: &str) -> Result<String> {
    let parts: Vec<&str> = tinker_path.strip_prefix("tinker://").unwrap_or_default().split('/').collect();
    match parts[..] {
        [run, kind @ ("weights" | "sampler_weights" | "external_weights"), name]
            if !run.is_empty() && !name.is_empty() =>
        {
            Ok(format!("/training_runs/{run}/checkpoints/{kind}/{name}"))
        }
        _ => Err(Error::Usage(format!("{tinker_path:?} is not of the form tinker://RUN/KIND/NAME"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_paths_become_routes() {
        let route = checkpoint_route("tinker://s:train:0/sampler_weights/a").unwrap();
        assert_eq!(route, "/training_runs/s:train:0/checkpoints/sampler_weights/a");
        for bad in [
            "",
            "tinker://r/a",
            "http://r/weights/a",
            "tinker://r/wheels/a",
            "tinker:///weights/a",
            "tinker://r/weights/a/b",
        ] {
            assert!(checkpoint_route(bad).is_err(), "{bad}");
        }
    }
}
