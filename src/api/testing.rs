//! For tests: the handlers' state around an engine that only listens.

use std::sync::mpsc::{Receiver, channel};

use chrono::{DateTime, Utc};

use super::links::Links;
use crate::config::Config;
use crate::engine::handle::{Handle, Message, ModelInfo};
use crate::futures::ledger::Ledger;
use crate::ids::{ModelId, OwnerId, SessionId};
use crate::store;
use crate::store::sessions::SessionRow;

use super::state::App;

/// Serves one model, `tiny`, of 10 tokens.
pub async fn app() -> (App, Receiver<Message>) {
    let (tx, rx) = channel();
    let dir = tempfile::tempdir().unwrap();
    let model = ModelInfo {
        name: "tiny".into(),
        dir: dir.path().into(),
        arch: "qwen3".into(),
        vocab_size: 10,
        max_context_length: 8,
        eos_ids: vec![9],
    };
    let links = Links::open(dir.path()).unwrap();
    let store = store::testing::empty_store().await;
    let ledger = Ledger::for_testing(dir.path());
    let config = Config::for_testing(dir.path());
    // Nobody looks into it: it may go before the app does.
    (App::new(config, Handle::new(tx, vec![model]), store, links, ledger), rx)
}

pub fn owner() -> OwnerId {
    OwnerId("me".into())
}

/// A session of `owner` with this heartbeat.
pub async fn session(app: &App, heartbeat: DateTime<Utc>) -> SessionRow {
    let row = SessionRow {
        created_at: heartbeat,
        last_heartbeat_at: heartbeat,
        ..store::testing::session(&SessionId::random().0, &owner().0)
    };
    app.store().insert_session(&row).await.unwrap();
    row
}

/// A run of `owner` in a session of its own.
pub async fn run(app: &App) -> ModelId {
    let id = session(app, Utc::now()).await.id.model(0);
    let row = store::testing::run(&id.0, &owner().0);
    app.known().announce_run(row);
    id
}
