//! Losses that clients trace and upload: kept for their session, checked again only after a restart (protocol ch. 15).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use chrono::Utc;
use tinderbox_client::types::custom_loss::CreateCustomLossRequest;

use crate::error::{Error, Result};
use crate::futures::issue::Key;
use crate::futures::meaning;
use crate::futures::state::Answer;
use crate::ids::{LossId, OwnerId, SessionId};
use crate::loss::custom::{Program, compile};
use crate::store::custom_losses::CustomLossRow;
use crate::validate::custom_loss::graph;

use super::auth::Owner;
use super::body::JsonBody;
use super::error::ApiResult;
use super::state::App;
use super::submit::{Promise, promise};

/// The endpoint, as it stands in the journal.
const KIND: &str = "create_custom_loss";
/// Losses that a session may keep.
const MAX_PER_SESSION: u64 = 256;
/// Bytes of a name.
const MAX_NAME: usize = 255;
/// Bytes of a stored loss: ten times what 2000 plain nodes take.
const MAX_BODY: usize = 1 << 20;
/// Programs kept ready; beyond it they are made again from their rows.
const MAX_READY: usize = 256;

/// Stores a traced loss. The promise is kept at once.
pub async fn create_custom_loss(
    State(app): State<App>,
    Owner(owner): Owner,
    JsonBody(r): JsonBody<CreateCustomLossRequest>,
) -> ApiResult<Promise> {
    let session = SessionId(r.session_id.clone());
    app.open_session(&owner, &session).await?;
    let meaning = meaning::of_request(KIND, &r);
    let key = Key::CustomLoss { session: session.clone(), seq: r.custom_loss_seq_id };
    if let Some(id) = app.futures().find(&key, meaning)? {
        return Ok(promise(id, None));
    }
    if r.name.len() > MAX_NAME {
        return Err(Error::user(format!("name has {} bytes; the limit is {MAX_NAME}", r.name.len())).into());
    }
    if r.custom_loss_seq_id > i64::MAX as u64 {
        return Err(Error::user(format!("custom_loss_seq_id {} is beyond 2^63", r.custom_loss_seq_id)).into());
    }
    app.futures().pace().admit(&owner, 1, 0)?;
    let (id, seq) = (LossId::random(), r.custom_loss_seq_id);
    let loss = id.clone();
    let (program, body) = app.heavy(move || checked(&loss, &r)).await??;
    if app.store().count_custom_losses(&session, seq).await? >= MAX_PER_SESSION {
        return Err(Error::user(format!("session {session} has {MAX_PER_SESSION} custom losses, the limit")).into());
    }
    let row = CustomLossRow { id: id.clone(), owner: owner.clone(), session, seq, body, created_at: Utc::now() };
    let kept = app.store().put_custom_loss(&row).await?;
    if kept.body != row.body {
        return Err(Error::user(format!("{key} was used by a different request; take the next number")).into());
    }
    if app.has_ended(&row.session).await? {
        app.store().delete_custom_losses(&row.session).await?;
    }
    if kept.id == id {
        tracing::info!(session = %row.session, loss = %id, "custom loss kept");
        app.ready_losses().insert(row, program);
    }
    let id = app.futures().kept(owner, (KIND, key), meaning, Answer::LossKept { loss: kept.id })?;
    Ok(promise(id, None))
}

fn checked(id: &LossId, request: &CreateCustomLossRequest) -> Result<(Arc<Program>, String)> {
    let program = compile(&id.0, &graph(request)?)?;
    let body = serde_json::to_string(request).map_err(|e| Error::user(format!("the graph has no JSON form: {e}")))?;
    if body.len() > MAX_BODY {
        return Err(Error::user(format!("the loss takes {} bytes; the limit is {MAX_BODY}", body.len())));
    }
    Ok((Arc::new(program), body))
}

impl App {
    /// The loss of this id, when this owner uploaded it under this `session_id`.
    pub async fn custom_loss(&self, owner: &OwnerId, session: &SessionId, id: &LossId) -> Result<Arc<Program>> {
        let missing = || {
            Error::not_found(format!(
                "there is no custom loss {:?} in session {session}",
                id.0.chars().take(80).collect::<String>()
            ))
        };
        if let Some((row_owner, row_session, program)) = self.ready_losses().get(id) {
            return if (&row_owner, &row_session) == (owner, session) { Ok(program) } else { Err(missing()) };
        }
        let row = self.store().custom_loss(id).await?.filter(|r| r.owner == *owner && r.session == *session);
        let row = row.ok_or_else(missing)?;
        let (id, body) = (row.id.clone(), row.body.clone());
        let again = move || {
            let request = serde_json::from_str(&body).map_err(|e| Error::server(format!("a stored loss: {e}")))?;
            checked(&id, &request)
        };
        let (program, _) = self.heavy(again).await??;
        self.ready_losses().insert(row, program.clone());
        Ok(program)
    }
}

/// Programs of late use, each with its owner and session.
#[derive(Default)]
pub struct ReadyLosses(Mutex<HashMap<LossId, Ready>>);

type Ready = (OwnerId, SessionId, Arc<Program>);

impl ReadyLosses {
    fn get(&self, id: &LossId) -> Option<Ready> {
        self.0.lock().expect("no code panics while it holds this map").get(id).cloned()
    }

    fn insert(&self, row: CustomLossRow, program: Arc<Program>) {
        let mut map = self.0.lock().expect("no code panics while it holds this map");
        if map.len() >= MAX_READY {
            map.clear();
        }
        map.insert(row.id, (row.owner, row.session, program));
    }

    /// The session has ended.
    pub fn forget(&self, session: &SessionId) {
        let mut map = self.0.lock().expect("no code panics while it holds this map");
        map.retain(|_, (_, s, _)| s != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::links::Links;
    use crate::api::testing::{self, owner};
    use crate::config::Config;
    use crate::engine::handle::Handle;
    use crate::error::Category;
    use crate::futures::ledger::Ledger;
    use crate::futures::retrieve::Poll;
    use crate::store::sessions::Finish;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn request(session: &SessionId, seq: u64, method: &str) -> CreateCustomLossRequest {
        let nodes = json!([
            {"op": "placeholder", "name": "logprobs", "target": "logprobs"},
            {"op": "call_method", "name": "loss", "target": method, "args": [{"ref": "logprobs"}]},
            {"op": "output", "name": "output", "target": "output", "args": [{"tuple": [{"ref": "loss"}, {"dict": {}}]}]},
        ]);
        let body = json!({"session_id": session.0, "custom_loss_seq_id": seq, "name": "f", "type": "create_custom_loss",
            "inputs": [{"name": "logprobs", "rank": 1}], "graph": {"format": 1, "nodes": nodes}});
        serde_json::from_value(body).unwrap()
    }

    async fn create(app: &App, who: &str, r: CreateCustomLossRequest) -> Result<String, StatusCode> {
        let promise = create_custom_loss(State(app.clone()), Owner(OwnerId(who.into())), JsonBody(r)).await;
        promise.map(|p| p.0.request_id).map_err(|e| e.into_response().status())
    }

    async fn loss_of(app: &App, promise: &str) -> LossId {
        let id = crate::ids::RequestId(promise.into());
        match app.futures().retrieve(&id, &owner(), Duration::ZERO).await {
            Poll::Done(answer) => match &*answer {
                Answer::LossKept { loss } => loss.clone(),
                other => panic!("{other:?}"),
            },
            _ => panic!("the promise is not kept"),
        }
    }

    #[tokio::test]
    async fn a_number_stands_for_one_loss_also_after_a_restart() {
        let (app, _engine) = testing::app().await;
        let session = testing::session(&app, Utc::now()).await.id;
        let first = create(&app, "me", request(&session, 0, "sum")).await.unwrap();
        assert_eq!(create(&app, "me", request(&session, 0, "sum")).await.unwrap(), first);
        assert_eq!(create(&app, "me", request(&session, 0, "mean")).await, Err(StatusCode::BAD_REQUEST));
        let other = create(&app, "me", request(&session, 1, "mean")).await.unwrap();
        let loss = loss_of(&app, &first).await;
        assert_ne!(loss_of(&app, &other).await, loss);
        // Promises and programs are gone, rows are not.
        let dir = tempfile::tempdir().unwrap();
        let (links, engine) = (Links::open(dir.path()).unwrap(), Handle::new(std::sync::mpsc::channel().0, vec![]));
        let ledger = Ledger::for_testing(dir.path());
        let restarted = App::new(Config::for_testing(dir.path()), engine, app.store().clone(), links, ledger);
        assert_eq!(restarted.custom_loss(&owner(), &session, &loss).await.unwrap().id, loss.0);
        let again = create(&restarted, "me", request(&session, 0, "sum")).await.unwrap();
        assert_eq!(loss_of(&restarted, &again).await, loss);
        assert_eq!(create(&restarted, "me", request(&session, 1, "sum")).await, Err(StatusCode::BAD_REQUEST));
    }

    #[tokio::test]
    async fn a_loss_is_its_owners_and_its_sessions_alone() {
        let (app, _engine) = testing::app().await;
        let (row, other) = (testing::session(&app, Utc::now()).await, testing::session(&app, Utc::now()).await.id);
        let session = row.id.clone();
        assert_eq!(create(&app, "them", request(&session, 0, "sum")).await, Err(StatusCode::NOT_FOUND));
        assert_eq!(create(&app, "me", request(&session, 0, "backward")).await, Err(StatusCode::BAD_REQUEST));
        let loss = loss_of(&app, &create(&app, "me", request(&session, 0, "sum")).await.unwrap()).await;
        for forget in [false, true] {
            if forget {
                app.ready_losses().forget(&session);
            }
            for (who, session) in [("them", &session), ("me", &other)] {
                let e = app.custom_loss(&OwnerId(who.into()), session, &loss).await.unwrap_err();
                assert_eq!(e.category, Category::NotFound);
            }
        }
        assert!(app.custom_loss(&owner(), &session, &loss).await.is_ok());
        let finish = Finish { at: Utc::now(), reason: "success".into(), detail: None };
        app.end_session(&row, finish).await.unwrap();
        assert!(app.custom_loss(&owner(), &session, &loss).await.is_err());
        assert_eq!(app.store().count_custom_losses(&session, 9).await.unwrap(), 0);
        assert_eq!(create(&app, "me", request(&session, 1, "sum")).await, Err(StatusCode::BAD_REQUEST));
    }

    #[tokio::test]
    async fn a_session_keeps_a_limited_number() {
        let (app, _engine) = testing::app().await;
        let session = testing::session(&app, Utc::now()).await.id;
        for seq in 0..MAX_PER_SESSION {
            create(&app, "me", request(&session, seq, "sum")).await.unwrap();
        }
        assert_eq!(create(&app, "me", request(&session, MAX_PER_SESSION, "sum")).await, Err(StatusCode::BAD_REQUEST));
        // A repeat of one that is there is still answered.
        assert!(create(&app, "me", request(&session, 0, "sum")).await.is_ok());
        let mut long = request(&session, 9999, "sum");
        long.graph.nodes[1].kwargs.insert("device".into(), Value::String("cpu".repeat(MAX_BODY)));
        assert_eq!(create(&app, "me", long).await, Err(StatusCode::BAD_REQUEST));
    }
}
