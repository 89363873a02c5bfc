//! For tests: an empty database, in memory or on the Postgres of `tests/postgres run`.

use sqlx::{Connection, Executor};

use super::Store;
use super::keys::NewKey;
use crate::config;
use crate::config::auth::sha256;
use crate::config::quotas::Quotas;
use crate::ids::OwnerId;

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
