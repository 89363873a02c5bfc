//! A finished sequence by its id, with the version of the weights behind each token: an addition to the protocol.

use axum::Json;
use axum::extract::{Path, State};
use tinderbox_client::types::sampling::GetSequenceResponse;

use crate::error::{Error, Result};
use crate::futures::retrieve::Poll;
use crate::futures::state::Answer;
use crate::ids::{OwnerId, SamplerId};
use crate::store::samplers::SamplerSource;

use super::answers::{stop_reason, told};
use super::auth::Owner;
use super::error::ApiResult;
use super::state::App;

/// One of the ids that `asample` gave out. Not found: another owner's, one that is not finished, one whose result is no
/// longer kept.
pub async fn get(
    State(app): State<App>,
    Owner(owner): Owner,
    Path(id): Path<String>,
) -> ApiResult<Json<GetSequenceResponse>> {
    Ok(Json(sequence(&app, &owner, &id).await?))
}

async fn sequence(app: &App, owner: &OwnerId, id: &str) -> Result<GetSequenceResponse> {
    let none = || Error::not_found(format!("there is no sequence {id:?}, or its result is no longer kept"));
    let (sampler, seq, index) = parse(id).ok_or_else(none)?;
    let row = app.known().sampler(app.store(), &sampler).await?.ok_or_else(none)?;
    let answer = match app.futures().sample(&sampler, seq, owner) {
        Poll::Done(answer) => answer,
        Poll::Pending(_) => return Err(Error::not_found(format!("sequence {id:?} is still being generated"))),
        Poll::Failed(e) => return Err(Error::not_found(format!("the request of sequence {id:?} failed: {e}"))),
        Poll::Unknown => return Err(none()),
    };
    let Answer::Sampled { output, .. } = &*answer else { return Err(none()) };
    let sequence = output.sequences.get(index).ok_or_else(none)?;
    let (training_run_id, model_path) = match &row.source {
        SamplerSource::Base => (None, None),
        SamplerSource::Snapshot(run) => (Some(run.0.clone()), None),
        SamplerSource::Checkpoint { path, .. } => (None, Some(path.to_string())),
    };
    Ok(GetSequenceResponse {
        sequence_id: id.into(),
        sampler_id: sampler.0,
        base_model: row.base_model.clone(),
        training_run_id,
        model_path,
        stop_reason: stop_reason(sequence.stop_reason),
        tokens: sequence.tokens.clone(),
        logprobs: sequence.logprobs.iter().copied().map(told).collect(),
        weight_versions: sequence.weight_versions.clone(),
    })
}

/// `SAMPLER:SEQ:INDEX`.
fn parse(id: &str) -> Option<(SamplerId, u64, usize)> {
    let (rest, index) = id.rsplit_once(':')?;
    let (sampler, seq) = rest.rsplit_once(':')?;
    Some((SamplerId(sampler.into()), seq.parse().ok()?, index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_apart_from_behind() {
        let parsed = |id: &str| parse(id).map(|(sampler, seq, index)| (sampler.0, seq, index));
        assert_eq!(parsed("s:sample:0:17:2"), Some(("s:sample:0".into(), 17, 2)));
        for id in ["", "s", "s:sample", "s:sample:0:x:1", "s:sample:0:1:-1", "::"] {
            assert_eq!(parsed(id), None, "{id}");
        }
    }
}
