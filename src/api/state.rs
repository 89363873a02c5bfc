//! What every handler shares.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Semaphore;

use super::links::Links;
use crate::accounts::Accounts;
use crate::config::Config;
use crate::config::limits::Limits;
use crate::config::public_url::PublicUrl;
use crate::engine::handle::Handle;
use crate::error::{Error, Result};
use crate::futures::admission::Room;
use crate::futures::issue::Key;
use crate::futures::ledger::Ledger;
use crate::futures::{Futures, Retention};
use crate::ids::CheckpointPath;
use crate::store::Store;
use crate::upload::Uploads;

use super::auth::Refusals;
use super::custom_loss::ReadyLosses;
use super::exports::Exports;
use super::inference::chats::Chats;
use super::keys::Keys;
use super::known::Known;
use super::telemetry::Reports;
use super::tokens::Tokens;

/// How long the files of a deleted or replaced checkpoint stay for those who are reading them.
const FILES_OUTLIVE_ROW: Duration = Duration::from_secs(60);

/// The router's state; cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Shared>);

struct Shared {
    config: Config,
    keys: Keys,
    refusals: Refusals,
    engine: Handle,
    store: Store,
    futures: Futures,
    links: Links,
    known: Known,
    chats: Chats,
    reports: Reports,
    ready_losses: ReadyLosses,
    /// Held while a copy is made, so that a repeat of its request finds it.
    copying: tokio::sync::Mutex<()>,
    uploads: Uploads,
    exports: Exports,
    started: DateTime<Utc>,
    /// Large bodies are worked on by so many threads at once.
    heavy: Semaphore,
    /// Makes the seeds that users left open unpredictable, and a repeat's the same.
    secret: [u8; 32],
}

impl App {
    /// Must be called inside a tokio runtime.
    pub fn new(config: Config, engine: Handle, store: Store, links: Links, ledger: Ledger) -> Self {
        let limits = &config.limits;
        let retention =
            Retention { time: limits.result_retention, bytes: limits.result_bytes, files: FILES_OUTLIVE_ROW };
        let room = Room { bytes: limits.pending_bytes, requests: limits.pending_requests };
        let accounts = Accounts::new(config.quotas.clone());
        let data_dir = config.store.data_dir.clone();
        let futures = Futures::new(engine.clone(), store.clone(), retention, room, accounts, data_dir, ledger);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let tokens = Tokens::new(links.secret_for(b"tinderbox token v1"), limits.token_lifetime);
        let keys = Keys::new(&config.auth, tokens, config.bind.is_loopback());
        let uploads = Uploads::new(config.store.data_dir.join("uploads"), limits.upload_bytes);
        let exports = Exports::new(config.store.data_dir.join("exports"));
        Self(Arc::new(Shared {
            config,
            keys,
            refusals: Refusals::default(),
            engine,
            store,
            futures,
            links,
            known: Known::default(),
            ready_losses: ReadyLosses::default(),
            copying: tokio::sync::Mutex::default(),
            uploads,
            exports,
            chats: Chats::default(),
            reports: Reports::default(),
            started: Utc::now(),
            heavy: Semaphore::new(cores),
            secret: rand::random(),
        }))
    }

    /// When this process began to serve.
    pub fn started(&self) -> DateTime<Utc> {
        self.0.started
    }

    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    pub fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// Where clients reach the server, when it was said.
    pub fn public_url(&self) -> Option<&PublicUrl> {
        self.0.config.public_url.as_ref()
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

    pub fn reports(&self) -> &Reports {
        &self.0.reports
    }

    pub fn chats(&self) -> &Chats {
        &self.0.chats
    }

    pub fn ready_losses(&self) -> &ReadyLosses {
        &self.0.ready_losses
    }

    pub fn copying(&self) -> &tokio::sync::Mutex<()> {
        &self.0.copying
    }

    pub fn uploads(&self) -> &Uploads {
        &self.0.uploads
    }

    pub fn exports(&self) -> &Exports {
        &self.0.exports
    }

    /// Runs what takes long on a thread of its own, so that heartbeats go on; a few at once, so that memory lasts.
    pub async fn heavy<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let _turn = self.0.heavy.acquire().await.map_err(|e| Error::server(e.to_string()))?;
        tokio::task::spawn_blocking(work).await.map_err(|e| Error::server(format!("the work broke off: {e}")))
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
        // File systems take 255 bytes; a name may have as many by itself.
        let name = &path.name[..path.name.len().min(200)];
        let leaf = format!("{name}.{}", &unique[..8]);
        self.checkpoints_dir().join(path.run.dir_name()).join(path.kind.segment()).join(leaf)
    }

    /// Where all checkpoints lie, as `RUN/KIND/NAME.UNIQUE`.
    pub fn checkpoints_dir(&self) -> PathBuf {
        self.0.config.store.data_dir.join("checkpoints")
    }
}

#[cfg(test)]
mod tests {
    use crate::api::testing;

    #[tokio::test]
    async fn work_that_panics_is_an_error_that_says_so() {
        let (app, _engine) = testing::app().await;
        let broken = app.heavy(|| panic!("no tokens")).await.map(|()| "done").unwrap_err().message;
        assert!(broken.starts_with("the work broke off: ") && broken.contains("no tokens"), "{broken}");
    }

    #[tokio::test]
    async fn the_longest_name_has_a_directory() {
        let (app, _engine) = testing::app().await;
        let path = format!("tinker://s:train:0/weights/{}", "n".repeat(255)).parse().unwrap();
        let dir = app.new_checkpoint_dir(&path);
        std::fs::create_dir_all(&dir).unwrap();
        assert!(dir.starts_with(app.checkpoints_dir().join("s-train-0/weights")));
        assert_ne!(app.new_checkpoint_dir(&path), dir);
        std::fs::remove_dir_all(app.checkpoints_dir().parent().unwrap()).unwrap();
    }
}
