//! A request on a run, from its number to its promise.

use axum::Json;
use tinderbox_client::types::futures::UntypedApiFuture;

use crate::command::{Command, RunCommand};
use crate::error::{Category, Error, Result};
use crate::futures::admission::{Permit, size_bytes};
use crate::futures::complete::Completion;
use crate::futures::issue::{Key, Request};
use crate::ids::{ModelId, OwnerId, RequestId};

use super::access::Run;
use super::error::ApiResult;
use super::state::App;
use super::trace;

/// What every endpoint that starts work answers.
pub type Promise = Json<UntypedApiFuture>;

/// A run of this owner and the place of the request in its order.
pub struct Numbered {
    pub owner: OwnerId,
    pub run: Run,
    pub seq: u64,
    permit: Permit,
}

impl App {
    /// The run of a request with `model_id` and `seq_id`.
    pub async fn numbered(
        &self,
        owner: OwnerId,
        model_id: &str,
        seq_id: Option<u64>,
        permit: Permit,
    ) -> Result<Numbered> {
        let model = ModelId(model_id.into());
        trace::on_run(&model, seq_id);
        let run = self.run(&owner, &model).await?;
        match seq_id {
            None | Some(0) => Err(Error::user("seq_id is missing: it counts the requests of a run, from 1")),
            // The highest number means "out of order" to the engine.
            Some(seq) if seq > i64::MAX as u64 => Err(Error::user(format!("seq_id {seq} is beyond 2^63"))),
            Some(seq) => Ok(Numbered { owner, run, seq, permit }),
        }
    }
}

impl Numbered {
    pub fn key(&self) -> Key {
        Key::Run { model: self.run.row.id.clone(), seq: self.seq }
    }

    /// The outcome of a check. When it says that the request is wrong, its number is spent (protocol §11.2 rule 4).
    pub fn checked<T>(&self, app: &App, result: Result<T>) -> Result<T> {
        if let Err(e) = &result
            && e.category != Category::Server
        {
            app.futures().refuse(self.run.row.id.clone(), self.seq);
        }
        result
    }

    /// The promise this number already has, for handlers that look into the store before they issue.
    pub fn repeated(&self, app: &App, meaning: u64) -> Result<Option<Promise>> {
        Ok(app.futures().find(&self.key(), meaning)?.map(|id| promise(id, Some(&self.run.row.id))))
    }

    pub fn issue(self, app: &App, meaning: u64, command: RunCommand, completion: Completion) -> ApiResult<Promise> {
        if let Some(promise) = self.repeated(app, meaning)? {
            return Ok(promise);
        }
        let key = self.key();
        let Self { owner, run, seq, mut permit } = self;
        let model = run.row.id.clone();
        let command = Command::Run { owner: owner.clone(), model: model.clone(), seq, command };
        permit.was_read();
        permit.grow(size_bytes(&command))?;
        let id = RequestId::random();
        let request = Request { id, owner, key, meaning, command, completion, permit: Some(permit) };
        Ok(promise(app.futures().issue(request)?.id, Some(&model)))
    }
}

pub fn promise(id: RequestId, model: Option<&ModelId>) -> Promise {
    Json(UntypedApiFuture { request_id: id.0, model_id: model.map(|m| m.0.clone()), sample_sequence_ids: None })
}
