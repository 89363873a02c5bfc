//! What every handler shares.

use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::links::Links;
use crate::config::Config;
use crate::config::auth::Keys;
use crate::config::limits::Limits;
use crate::engine::handle::Handle;
use crate::futures::issue::Key;
use crate::futures::{Futures, Retention};
use crate::ids::CheckpointPath;
use crate::store::Store;

use super::known::Known;

/// The router's state; cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Shared>);

struct Shared {
    config: Config,
    keys: Keys,
    engine: Handle,
    store: Store,
    futures: Futures,
    links: Links,
    known: Known,
    /// Makes the seeds that users left open unpredictable, and a repeat's the same.
    secret: [u8; 32],
}

impl App {
    /// Must be called inside a tokio runtime.
    pub fn new(config: Config, engine: Handle, store: Store, links: Links) -> Self {
        let retention = Retention { time: config.limits.result_retention, bytes: config.limits.result_bytes };
        let futures = Futures::new(engine.clone(), store.clone(), retention);
        let keys = config.auth.table();
        Self(Arc::new(Shared {
            config,
            keys,
            engine,
            store,
            futures,
            links,
            known: Known::default(),
            secret: rand::random(),
        }))
    }

    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    pub fn limits(&self) -> &Limits {
        &self.0.config.limits
    }

    pub fn engine(&self) -> &Handle {
        &self.0.engine
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub fn futures(&self) -> &Futures {
        &self.0.futures
    }

    pub fn links(&self) -> &Links {
        &self.0.links
    }

    pub fn known(&self) -> &Known {
        &self.0.known
    }

    /// The seed for a request that names none: unpredictable, but the same for a repeat of the request.
    pub fn seed(&self, key: &Key) -> u64 {
        use hmac::Mac;
        let mut mac =
            hmac::Hmac::<sha2::Sha256>::new_from_slice(&self.0.secret).expect("HMAC takes keys of any length");
        mac.update(key.to_string().as_bytes());
        let bytes = mac.finalize().into_bytes();
        // 63 bits: a database's BIGINT must hold it.
        u64::from_le_bytes(bytes[..8].try_into().expect("SHA-256 has 32 bytes")) >> 1
    }

    /// A new directory for a checkpoint's files; every save gets one of its own, also under a name used before.
    pub fn new_checkpoint_dir(&self, path: &CheckpointPath) -> PathBuf {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let run = path.run.0.replace(':', "-");
        let leaf = format!("{}.{}", path.name, &unique[..8]);
        self.0.config.store.data_dir.join("checkpoints").join(run).join(path.kind.segment()).join(leaf)
    }
}
