//! For tests: an empty database, in memory or on the Postgres of `tests/postgres run`, and plain rows, which tests change
//! where it matters to them.

use chrono::{DateTime, Utc};
use sqlx::{Connection, Executor};

use super::checkpoints::CheckpointRow;
use super::keys::NewKey;
use super::runs::RunRow;
use super::samplers::{SamplerRow, SamplerSource};
use super::sessions::SessionRow;
use super::{Metadata, Store};
use crate::command::RunKind;
use crate::config;
use crate::config::auth::sha256;
use crate::config::quotas::Quotas;
use crate::ids::{ModelId, OwnerId, SessionId};

/// On Postgres a new database in the cluster, which goes with the cluster.
pub async fn empty_store() -> Store {
    let Some(server) = config::store::postgres_for_testing() else {
        return Store::open("sqlite::memory:").await.unwrap();
    };
    sqlx::any::install_default_drivers();
    let name = format!("test_{}", uuid::Uuid::new_v4().simple());
    let mut admin = sqlx::AnyConnection::connect(&format!("{server}/postgres")).await.unwrap();
    admin.execute(format!("CREATE DATABASE {name}").as_str()).await.unwrap();
    admin.close().await.unwrap();
    Store::open(&format!("{server}/{name}")).await.unwrap()
}

/// A key of an account that is called like it.
pub fn key(name: &str, secret: &str) -> NewKey {
    let (owner, hash) = (OwnerId(name.into()), sha256(secret));
    NewKey { name: name.into(), owner, hash, expires_at: None, quotas: Quotas::default() }
}

/// So many microseconds after a moment long ago.
pub fn at(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(1_700_000_000_000_000 + micros).unwrap()
}

/// As exact as a database keeps it.
pub fn now() -> DateTime<Utc> {
    DateTime::from_timestamp_micros(Utc::now().timestamp_micros()).unwrap()
}

/// An active session, made now.
pub fn session(id: &str, owner: &str) -> SessionRow {
    SessionRow {
        id: SessionId(id.into()),
        owner: OwnerId(owner.into()),
        created_at: now(),
        last_heartbeat_at: now(),
        tags: vec![],
        user_metadata: Metadata::new(),
        sdk_version: "0.38.0".into(),
        project_id: None,
        display_name: None,
        finished: None,
    }
}

/// A run on `tiny`, `SESSION:train:N`, made now.
pub fn run(id: &str, owner: &str) -> RunRow {
    let (session, _) = id.split_once(":train:").unwrap();
    RunRow {
        id: ModelId(id.into()),
        session: SessionId(session.into()),
        owner: OwnerId(owner.into()),
        base_model: "tiny".into(),
        kind: RunKind::Full,
        user_metadata: Metadata::new(),
        created_at: now(),
        last_request_at: now(),
        corrupted: false,
        fault: None,
    }
}

/// A private checkpoint of `tiny` with one byte, made now.
pub fn checkpoint(path: &str, owner: &str) -> CheckpointRow {
    CheckpointRow {
        path: path.parse().unwrap(),
        owner: OwnerId(owner.into()),
        base_model: "tiny".into(),
        kind: RunKind::Full,
        dir: path.replace("tinker://", "/data/").into(),
        size_bytes: 1,
        created_at: now(),
        expires_at: None,
        public: false,
        user_metadata: Metadata::new(),
    }
}

/// The `seq`-th sampler of `session`, on the model `tiny`, made now.
pub fn sampler(session: &str, seq: u64, owner: &str, source: SamplerSource) -> SamplerRow {
    let (session, owner) = (SessionId(session.into()), OwnerId(owner.into()));
    let id = session.sampler(seq);
    SamplerRow { id, session, owner, base_model: "tiny".into(), source, created_at: now() }
}
