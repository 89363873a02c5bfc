//! Samplers and samples (protocol §7.11 to 7.13, ch. 12).

use axum::Json;
use axum::extract::{Path, State};
use chrono::Utc;
use tinderbox_client::types::futures::UntypedApiFuture;
use tinderbox_client::types::sampling::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse, GetSamplerResponse, JoinSamplingSessionRequest,
    JoinSamplingSessionResponse, SampleRequest,
};

use crate::accounts::tally::rate_tokens;
use crate::command::{Command, Origin, SampleSource};
use crate::error::{Error, Result};
use crate::futures::admission::size_bytes;
use crate::futures::complete::Completion;
use crate::futures::issue::{Key, Request};
use crate::futures::meaning;
use crate::ids::{CheckpointPath, OwnerId, RequestId, SamplerId, SessionId};
use crate::store::samplers::{SamplerRow, SamplerSource};
use crate::validate;
use crate::validate::runs::base_name;
use crate::validate::sampling::Names;
use crate::validate::weights::sampling_path;

use super::auth::Owner;
use super::body::{JsonBody, WorkBody};
use super::error::ApiResult;
use super::state::App;
use super::submit::Promise;
use super::trace;

/// A typo in the model or path shows here and not at the first sample. A repeat gets the same sampler.
pub async fn create_sampling_session(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<CreateSamplingSessionRequest>,
) -> ApiResult<Json<CreateSamplingSessionResponse>> {
    let session = SessionId(r.session_id.clone());
    app.open_session(&owner, &session).await?;
    let wanted = Wanted::of(&app, &r)?;
    let id = session.sampler(r.sampling_session_seq_id);
    let response = Json(CreateSamplingSessionResponse { sampling_session_id: id.0.clone() });
    if let Some(existing) = app.known().sampler(app.store(), &id).await? {
        wanted.same(&existing)?;
        return Ok(response);
    }
    app.futures().pace().admit(&owner, 1, 0)?;
    let (base_model, source) = wanted.resolve(&app, &owner).await?;
    let row = SamplerRow { id: id.clone(), session, owner, base_model, source, created_at: Utc::now() };
    if let Err(e) = app.store().insert_sampler(&row).await {
        // Another request of the same number may have been quicker.
        let existing = app.known().sampler(app.store(), &id).await?.ok_or(e)?;
        wanted.same(&existing)?;
    }
    Ok(response)
}

/// What a new sampler is asked to sample from. A path decides the weights when both are given.
enum Wanted {
    Checkpoint(CheckpointPath),
    Base(String),
}

impl Wanted {
    fn of(app: &App, r: &CreateSamplingSessionRequest) -> Result<Self> {
        match (&r.model_path, &r.base_model) {
            (Some(path), _) => sampling_path(path).map(Self::Checkpoint),
            (None, Some(name)) => Ok(Self::Base(app.model(base_name(name).0)?.name.clone())),
            (None, None) => Err(Error::user("one of base_model and model_path must be given")),
        }
    }

    /// Base model and weights. Of a checkpoint the files it has now.
    async fn resolve(&self, app: &App, owner: &OwnerId) -> Result<(String, SamplerSource)> {
        match self {
            Self::Base(name) => Ok((name.clone(), SamplerSource::Base)),
            Self::Checkpoint(path) => {
                let row = app.readable(owner, path).await?;
                let base = app.model_of(&row.base_model, path)?;
                Ok((base.name.clone(), SamplerSource::Checkpoint { path: path.clone(), dir: row.dir }))
            }
        }
    }

    /// A repeat asks for the same path, whatever lies under it by now.
    fn same(&self, existing: &SamplerRow) -> Result<()> {
        let same = match (self, &existing.source) {
            (Self::Checkpoint(wanted), SamplerSource::Checkpoint { path, .. }) => wanted == path,
            (Self::Base(name), SamplerSource::Base) => *name == existing.base_model,
            _ => false,
        };
        if same {
            return Ok(());
        }
        Err(Error::user(format!(
            "sampler {} exists and samples from other weights; take the next sampling_session_seq_id",
            existing.id
        )))
    }
}

pub async fn join_sampling_session(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<JoinSamplingSessionRequest>,
) -> ApiResult<Json<JoinSamplingSessionResponse>> {
    let row = app.sampler(&owner, &SamplerId(r.sampling_session_id)).await?;
    let client_counter = app.store().join_sampler(&row.id).await?;
    Ok(Json(JoinSamplingSessionResponse { client_counter }))
}

pub async fn get_sampler(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
) -> ApiResult<Json<GetSamplerResponse>> {
    let row = app.sampler(&owner, &SamplerId(id)).await?;
    let model_path = match &row.source {
        SamplerSource::Checkpoint { path, .. } => Some(path.to_string()),
        SamplerSource::Base | SamplerSource::Snapshot(_) => None,
    };
    Ok(Json(GetSamplerResponse { sampler_id: row.id.0.clone(), base_model: row.base_model.clone(), model_path }))
}

/// Accepts the request and names its sequences; a repeat gets the same promise and the same names.
pub async fn asample(
    State(app): State<App>,
    Owner(owner): Owner,
    WorkBody(r, mut permit): WorkBody<SampleRequest>,
) -> ApiResult<Promise> {
    let id = SamplerId(r.sampling_session_id.clone());
    let seq = r.seq_id.ok_or_else(|| Error::user("seq_id is missing: it counts the requests of a sampler, from 0"))?;
    trace::on_sampler(&id, seq);
    let row = app.sampler(&owner, &id).await?;
    let key = Key::Sample { sampler: id.clone(), seq };
    let meaning = meaning::of_request("asample", &r);
    // A repeat gets its promise also when the weights have gone since.
    if let Some(promise) = app.futures().find(&key, meaning)? {
        return Ok(accepted(promise, &id, seq, r.num_samples));
    }
    let num_samples = r.num_samples;
    let (source, path) = weights(&app, &owner, &row).await?;
    let model = app.model_of(&row.base_model, format_args!("sampler {id}"))?;
    let checked =
        validate::sampling::sample(r, source, model, app.limits().max_num_samples, app.seed(&key), &Names::TINKER)?;
    let promise = RequestId::random();
    let origin = Origin { owner: owner.clone(), session: row.session.clone(), promise: promise.clone() };
    let command = Command::Sample { origin, request: checked.request };
    permit.was_read();
    permit.grow(size_bytes(&command))?;
    let tokens = rate_tokens(&command);
    app.futures().pace().admit(&owner, 1, tokens)?;
    let completion = Completion::Sample { targets: checked.targets, path };
    let request =
        Request { id: promise, owner: owner.clone(), key, meaning, command, completion, permit: Some(permit) };
    let issued = app.futures().issue(request);
    if !issued.as_ref().is_ok_and(|issued| issued.new) {
        // Its number went to another request meanwhile, or the same one came twice at once: that one pays.
        app.futures().pace().take_back(&owner, tokens);
    }
    let issued = issued?;
    // A session that ended meanwhile did not see this request yet.
    if issued.new && app.has_ended(&row.session).await? {
        app.engine().cancel(issued.id.clone());
    }
    Ok(accepted(issued.id, &id, seq, num_samples))
}

fn accepted(promise: RequestId, sampler: &SamplerId, seq: u64, num_samples: i64) -> Promise {
    let sequences = (0..num_samples).map(|i| format!("{sampler}:{seq}:{i}")).collect();
    Json(UntypedApiFuture { request_id: promise.0, model_id: None, sample_sequence_ids: Some(sequences) })
}

/// The files a sampler was created with stay while it lives, whatever becomes of its checkpoint. Only another owner's
/// checkpoint is looked up for every request: it may have been withdrawn.
pub(super) async fn weights(
    app: &App,
    owner: &OwnerId,
    row: &SamplerRow,
) -> Result<(SampleSource, Option<CheckpointPath>)> {
    let (path, dir) = match &row.source {
        SamplerSource::Base => return Ok((SampleSource::Base, None)),
        SamplerSource::Snapshot(_) => return Ok((SampleSource::Snapshot(row.id.clone()), None)),
        SamplerSource::Checkpoint { path, dir } => (path, dir),
    };
    let source = (SampleSource::Checkpoint(dir.clone()), Some(path.clone()));
    match app.known().run(app.store(), &path.run).await? {
        Some(run) if run.owner == *owner => Ok(source),
        _ => match app.store().checkpoint(path).await? {
            Some(now) if now.dir == *dir && (now.public || now.owner == *owner) => Ok(source),
            _ => Err(Error::user(format!(
                "{path} was deleted, replaced or withdrawn by its owner since sampler {} was created from it",
                row.id
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::api::testing::{self, owner};
    use crate::config::quotas::Quotas;
    use crate::ids::ModelId;
    use crate::store;
    use crate::store::checkpoints::CheckpointRow;

    fn checkpoint(run: &ModelId, dir: &str) -> CheckpointRow {
        let path = format!("tinker://{run}/weights/a");
        CheckpointRow { dir: dir.into(), ..store::testing::checkpoint(&path, &owner().0) }
    }

    #[tokio::test]
    async fn a_sampler_keeps_the_weights_it_was_created_with() {
        let (app, _engine) = testing::app().await;
        let run = testing::run(&app).await;
        let session = testing::session(&app, Utc::now()).await.id;
        let first = checkpoint(&run, "/data/a.1");
        app.store().put_checkpoint(&first).await.unwrap();
        let create = async || {
            let request = CreateSamplingSessionRequest {
                session_id: session.0.clone(),
                sampling_session_seq_id: 0,
                base_model: None,
                model_path: Some(first.path.to_string()),
            };
            create_sampling_session(State(app.clone()), Owner(owner()), JsonBody(request)).await
        };
        assert!(create().await.is_ok());
        let row = app.sampler(&owner(), &session.sampler(0)).await.unwrap();
        let first_files = SampleSource::Checkpoint("/data/a.1".into());
        let source = async || weights(&app, &owner(), &row).await.unwrap().0;
        assert_eq!(source().await, first_files);
        app.store().put_checkpoint(&checkpoint(&run, "/data/a.2")).await.unwrap();
        assert_eq!(source().await, first_files, "replaced, but still sampled from");
        assert!(create().await.is_ok(), "a repeat names the same sampler");
        app.store().delete_checkpoint(&first.path).await.unwrap();
        assert_eq!(source().await, first_files, "deleted, but still sampled from");
        assert!(create().await.is_ok(), "also when the path is gone");
    }

    #[tokio::test]
    async fn new_samplers_count_against_the_rate_of_requests_and_repeats_do_not() {
        let (app, _engine) = testing::app().await;
        app.futures().accounts().set(owner(), Quotas { requests_per_minute: Some(2), ..Quotas::default() });
        let session = testing::session(&app, Utc::now()).await.id;
        let create = async |sampling_session_seq_id| {
            let session_id = session.0.clone();
            let base_model = Some("tiny".into());
            let request =
                CreateSamplingSessionRequest { session_id, sampling_session_seq_id, base_model, model_path: None };
            let made = create_sampling_session(State(app.clone()), Owner(owner()), JsonBody(request)).await;
            made.map_or_else(|e| e.status(), |_| StatusCode::OK)
        };
        assert_eq!((create(0).await, create(1).await), (StatusCode::OK, StatusCode::OK));
        assert_eq!(create(2).await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(create(0).await, StatusCode::OK);
    }

    #[tokio::test]
    async fn of_the_same_request_twice_at_once_one_is_paid_for() {
        let (app, _engine) = testing::app().await;
        app.futures()
            .accounts()
            .set(owner(), Quotas { requests_per_minute: Some(10), tokens_per_minute: Some(100), ..Quotas::default() });
        let session = testing::session(&app, Utc::now()).await.id;
        // Another's checkpoint is looked up between the search for a promise and its making.
        let row =
            CheckpointRow { public: true, ..store::testing::checkpoint("tinker://other:train:0/weights/a", "other") };
        app.store().put_checkpoint(&row).await.unwrap();
        let source = SamplerSource::Checkpoint { path: row.path, dir: row.dir };
        let sampler = store::testing::sampler(&session.0, 0, &owner().0, source);
        app.store().insert_sampler(&sampler).await.unwrap();
        let ask = |max_tokens: u32| {
            let request = serde_json::from_value(serde_json::json!({
                "sampling_session_id": sampler.id.0, "seq_id": 0, "num_samples": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
                "sampling_params": {"max_tokens": max_tokens},
            }));
            let permit = app.futures().admission().enter(&owner()).unwrap();
            asample(State(app.clone()), Owner(owner()), WorkBody(request.unwrap(), permit))
        };
        let (first, again) = tokio::join!(ask(3), ask(3));
        let other = ask(4).await;
        assert_eq!(first.unwrap().request_id, again.unwrap().request_id);
        assert_eq!(other.unwrap_err().status(), StatusCode::BAD_REQUEST, "the number is taken");
        let used = app.futures().pace().used(&owner());
        assert_eq!((used.requests, used.tokens), (Some(1), Some(5)));
    }

    #[tokio::test]
    async fn a_withdrawn_checkpoint_is_withdrawn_from_other_owners_samplers() {
        let (app, _engine) = testing::app().await;
        let run = testing::run(&app).await;
        let published = CheckpointRow { public: true, ..checkpoint(&run, "/data/a.1") };
        app.store().put_checkpoint(&published).await.unwrap();
        let other = OwnerId("other".into());
        let source = SamplerSource::Checkpoint { path: published.path.clone(), dir: published.dir.clone() };
        let row = store::testing::sampler("s", 0, &other.0, source);
        assert!(weights(&app, &other, &row).await.is_ok());
        app.store().set_checkpoint_public(&published.path, false).await.unwrap();
        assert!(weights(&app, &other, &row).await.unwrap_err().message.contains("withdrawn"));
        assert!(weights(&app, &owner(), &row).await.is_ok(), "its owner goes on");
    }
}
