//! Lists, searches and look-ups of runs, checkpoints, sessions and samplers, and what can be done to a checkpoint (protocol
//! §6.2).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::json;

use crate::error::{Error, Result};
use crate::service::ClientOptions;
use crate::transport::{Call, PROTOCOL_VERSION, Transport, parse};
use crate::types::checkpoints::{
    CheckpointsListResponse, CheckpointsQuery, CopyWeightsRequest, CopyWeightsResponse, ExternalWeightsUrlsResponse,
    RollbackResponse, RunsQuery, ScopeQuery, SetTtlRequest, TrainingRun, TrainingRunsResponse, WeightsInfoRequest,
    WeightsInfoResponse,
};
use crate::types::sampling::GetSamplerResponse;
use crate::types::search::{
    CheckpointSearchRequest, CheckpointSearchResponse, SessionSearchRequest, SessionSearchResponse,
};
use crate::types::service::{ClientConfigRequest, ClientConfigResponse, GetServerCapabilitiesResponse, HealthResponse};
use crate::types::sessions::{
    AssignProjectRequest, GetSessionResponse, ListSessionsResponse, TraceExportResponse, TraceExportStatus,
};
use crate::types::uploads::{
    ExternalWeightsUploadFinishRequest, ExternalWeightsUploadFinishResponse, ExternalWeightsUploadStartRequest,
    ExternalWeightsUploadStartResponse, UploadFile,
};

const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Between two questions whether an export is made.
const EXPORT_PAUSE: Duration = Duration::from_secs(2);

/// Needs no session.
///
/// ```no_run
/// # async fn example() -> tinderbox_client::Result<()> {
/// use tinderbox_client::RestClient;
/// use tinderbox_client::types::checkpoints::CheckpointsQuery;
///
/// let rest = RestClient::connect("http://127.0.0.1:8000", "tml-local")?;
/// for checkpoint in rest.list_user_checkpoints(&CheckpointsQuery::default()).await?.checkpoints {
///     println!("{} {}", checkpoint.tinker_path, checkpoint.time);
/// }
/// let path = "tinker://RUN/weights/final";
/// rest.set_checkpoint_ttl_from_tinker_path(path, Some(7 * 24 * 3600)).await?;
/// rest.publish_checkpoint_from_tinker_path(path).await?;
/// let copy = rest.copy_weights(path, "archive", None, None).await?;
/// rest.delete_checkpoint_from_tinker_path(&copy).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RestClient {
    transport: Arc<Transport>,
}

impl RestClient {
    pub(crate) fn new(transport: Arc<Transport>) -> Self {
        Self { transport }
    }

    /// A client without a session, for management alone. It presents the key as it is.
    pub fn connect(base_url: &str, api_key: &str) -> Result<Self> {
        Self::connect_with(&ClientOptions::new(base_url, api_key))
    }

    /// As [`Self::connect`], of options that have no session: address, key, and how long calls are repeated.
    pub fn connect_with(options: &ClientOptions) -> Result<Self> {
        Ok(Self::new(Arc::new(options.transport()?)))
    }

    /// Whether a server is there, and what its clock says. Needs no key.
    pub async fn healthz(&self) -> Result<(HealthResponse, Option<DateTime<Utc>>)> {
        let answer = self.transport.send(&Call::empty(Method::GET, "/healthz")).await?;
        Ok((parse("/healthz", &answer)?, answer.date))
    }

    /// The flags that the server sets for clients of this protocol's version.
    pub async fn client_config(&self) -> Result<ClientConfigResponse> {
        let request = ClientConfigRequest { sdk_version: PROTOCOL_VERSION.into() };
        self.transport.post("/client/config", &request).await
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

    /// Takes a run's weights and optimiser back to its last good state. Not in the Tinker protocol.
    pub async fn roll_back(&self, run_id: &str) -> Result<RollbackResponse> {
        self.transport.post(&format!("/training_runs/{run_id}/rollback"), &json!({})).await
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

    /// Sessions by name, project, metadata, status; newest first, page after page.
    pub async fn search_sessions(&self, request: &SessionSearchRequest) -> Result<SessionSearchResponse> {
        self.transport.post("/sessions/search", request).await
    }

    /// Checkpoints by name, run, base model, type, project, metadata; newest first, page after page.
    pub async fn search_checkpoints(&self, request: &CheckpointSearchRequest) -> Result<CheckpointSearchResponse> {
        self.transport.post("/checkpoints/search", request).await
    }

    pub async fn assign_session_project(&self, session_id: &str, project_id: &str) -> Result<()> {
        let path = format!("/sessions/{session_id}/project");
        let request = AssignProjectRequest { project_id: project_id.into() };
        self.transport.send_only(&Call::json(Method::PUT, &path, &request)?).await
    }

    /// The link to a file that shows the session's requests on a time line; waits until it is made.
    pub async fn export_session_trace(&self, session_id: &str) -> Result<String> {
        loop {
            let path = format!("/sessions/{session_id}/trace_export");
            let answer: TraceExportResponse = self.transport.get(&path, &json!({})).await?;
            match (answer.status, answer.url) {
                (TraceExportStatus::Ready, Some(url)) => return Ok(url),
                (TraceExportStatus::Ready, None) => return Err(Error::Decode(format!("{path}: ready without a url"))),
                (TraceExportStatus::Pending, _) => tokio::time::sleep(EXPORT_PAUSE).await,
                (TraceExportStatus::Failed, _) => {
                    return Err(Error::Decode(format!("{path}: {}", answer.error.unwrap_or_default())));
                }
            }
        }
    }

    /// Copies a checkpoint into a project and returns the copy's path. `weights_access_token` is that of another account
    /// whose checkpoint it is.
    pub async fn copy_weights(
        &self,
        path: &str,
        destination_project_id: &str,
        ttl_seconds: Option<i64>,
        weights_access_token: Option<&str>,
    ) -> Result<String> {
        let request = CopyWeightsRequest {
            source_path: path.into(),
            ttl_seconds,
            destination_project_id: Some(destination_project_id.into()),
            ..Default::default()
        };
        let mut call = Call::json(Method::POST, "/copy_weights", &request)?;
        if let Some(token) = weights_access_token {
            call = call.with_secret("x-tinker-weights-access-token", token)?;
        }
        // One key over all tries, so that there is one copy.
        let answer = self.transport.send(&call).await?;
        let copied: CopyWeightsResponse =
            serde_json::from_slice(&answer.body).map_err(|e| Error::Decode(format!("/copy_weights: {e}")))?;
        Ok(copied.tinker_path)
    }

    /// Downloads an export's files into `dir`, which is made when missing, and returns them.
    pub async fn download_external_weights(&self, tinker_path: &str, dir: &Path) -> Result<Vec<PathBuf>> {
        let links = self.get_external_weights_urls(tinker_path).await?;
        tokio::fs::create_dir_all(dir).await.map_err(|e| Error::Usage(format!("{}: {e}", dir.display())))?;
        let mut files = Vec::new();
        for (name, url) in links.urls {
            let plain = Path::new(&name).file_name().is_some_and(|file| file == name.as_str());
            if !plain {
                return Err(Error::Decode(format!("a file is called {name:?}")));
            }
            let file = dir.join(name);
            self.transport.fetch(&url, &file).await?;
            files.push(file);
        }
        Ok(files)
    }

    /// Uploads the adapter in `dir`, as `peft` saves one, and returns the path of the checkpoint it becomes.
    /// `request.files` is filled in.
    pub async fn upload_adapter(&self, dir: &Path, request: ExternalWeightsUploadStartRequest) -> Result<String> {
        let mut files = Vec::new();
        for name in ADAPTER_FILES {
            let file = dir.join(name);
            let meta = tokio::fs::metadata(&file).await;
            let size_bytes = meta.map_err(|e| Error::Usage(format!("{}: {e}", file.display())))?.len();
            files.push(UploadFile { name: name.into(), size_bytes });
        }
        let request = ExternalWeightsUploadStartRequest { files, ..request };
        let started: ExternalWeightsUploadStartResponse =
            self.transport.post("/external_weights_upload_start", &request).await?;
        for (name, url) in &started.urls {
            self.transport.put_file(url, &dir.join(name)).await?;
        }
        let finish = ExternalWeightsUploadFinishRequest { upload_id: started.upload_id };
        let finished: ExternalWeightsUploadFinishResponse =
            self.transport.post("/external_weights_upload_finish", &finish).await?;
        Ok(finished.tinker_path)
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
