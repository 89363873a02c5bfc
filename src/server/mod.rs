//! The server: store, promises and routes around an engine, until it is told to stop.

mod connections;
pub mod data_dir;
pub mod lock;
pub mod private;
mod sweep;
mod unstuck;
mod upkeep;

use std::future::Future;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use chrono::Utc;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::api;
use crate::api::links::Links;
use crate::api::state::App;
use crate::checkpoint;
use crate::config::Config;
use crate::config::durability::Durability;
use crate::engine;
use crate::engine::handle::Handle;
use crate::futures::ledger::Ledger;
use crate::futures::restored::Restored;
use crate::store::Store;
use crate::wal::Sync;

/// What is written is synced in groups of so long, unless durability is strict.
const GROUP: Duration = Duration::from_millis(200);

/// Requests in flight get this long to end after the signal.
const DRAIN: Duration = Duration::from_secs(10);

/// Takes the port. Errors name the address.
pub async fn bind(config: &Config) -> anyhow::Result<TcpListener> {
    let address = config.bind.address();
    TcpListener::bind(&address).await.map_err(|e| {
        let why = match e.kind() {
            ErrorKind::AddrNotAvailable => {
                let host = &config.bind.host;
                format!("; {host} is no address of this machine: --host takes one that is, 0.0.0.0 stands for all")
            }
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied => "; --port takes another port, 0 a free one".into(),
            _ => String::new(),
        };
        anyhow::Error::new(e).context(format!("cannot listen on {address}{why}"))
    })
}

/// Opens the database. Beyond this machine a server needs a key, from a flag or in there.
pub async fn open_store(config: &Config) -> anyhow::Result<Store> {
    let store = Store::open(&config.store.url).await?;
    let moved = store.follow_move(&checkpoints_dir(config)).await?;
    if moved > 0 {
        tracing::info!(checkpoints = moved, "the data directory was moved; its rows follow");
    }
    let keys = !config.auth.keys.is_empty() || !store.keys().await?.is_empty();
    config.bind.refuse_open_network(keys)?;
    Ok(store)
}

/// As [`App::checkpoints_dir`], before there is one.
fn checkpoints_dir(config: &Config) -> PathBuf {
    config.store.data_dir.join("checkpoints")
}

/// Opens the journal of requests, and reads what an earlier process left there.
pub fn open_ledger(config: &Config) -> anyhow::Result<(Ledger, Restored)> {
    let sync = match config.durability {
        Durability::Grouped => Sync::Within(GROUP),
        Durability::Strict => Sync::AtOnce,
    };
    let (ledger, mut restored) = Ledger::open(&config.store.data_dir.join("journal"), sync)?;
    restored.follow_move(&checkpoints_dir(config));
    Ok((ledger, restored))
}

/// Removes the weights of ephemeral samplers whose session has ended. To be called before the engine looks for them.
pub async fn sweep_snapshots(config: &Config, store: &Store) -> anyhow::Result<()> {
    Ok(sweep::snapshots(&engine::snapshots_dir(&config.store.data_dir), store).await?)
}

/// Serve on `listener` until `shutdown` resolves, then drain: long polls are answered at once, no new connection is
/// taken, the engine stops.
pub async fn run(
    config: Config,
    store: Store,
    (ledger, restored): (Ledger, Restored),
    engine: Handle,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    checkpoint::write::sweep(&config.store.data_dir)?;
    let links = Links::open(&config.store.data_dir)?;
    let address = listener.local_addr()?;
    let database = config.store.database();
    let runs_dir = engine::runs_dir(&config.store.data_dir);
    let app = App::new(config, engine.clone(), store.clone(), links, ledger);
    sweep::orphans(&app.checkpoints_dir(), &store).await?;
    upkeep::refresh_keys(&app).await?;
    for row in app.futures().revive(restored, &runs_dir).await? {
        app.known().announce_run(row);
    }
    let router = api::router(app.clone());
    let sweeper = tokio::spawn(sweep::forever(app.clone()));
    let syncer = tokio::spawn(upkeep::sync_forever(store.clone(), GROUP));
    let app_at_end = app.clone();
    let models: Vec<&str> = engine.models().iter().map(|m| m.name.as_str()).collect();
    let keys = app.keys().usable(Utc::now());
    tracing::info!(models = models.join(", "), keys, database, "ready on http://{address}");

    let (stop, mut stopping) = watch::channel(false);
    let upkeep = tokio::spawn(upkeep::until(app.clone(), stopping.clone()));
    let signal = async move {
        shutdown.await;
        tracing::info!("stopping: no new requests, up to {} s for those in flight", DRAIN.as_secs());
        app.futures().close();
        stop.send_replace(true);
    };
    let serving = connections::serve(listener, router, connections::TIMES, signal);
    let overdue = async {
        // An error means that the signal's side is gone, which is a stop too.
        let _ = stopping.wait_for(|stop| *stop).await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        () = serving => {}
        () = overdue => tracing::warn!("requests in flight were cut off"),
    }
    sweeper.abort();
    syncer.abort();
    let (stopped, ended) = tokio::sync::oneshot::channel();
    engine.shutdown(Box::new(move || {
        let _ = stopped.send(());
    }));
    // Saves that are being written are finished, so that they are not lost although their files are complete.
    if tokio::time::timeout(DRAIN, ended).await.is_err() {
        tracing::warn!("the engine did not stop in {} s", DRAIN.as_secs());
    }
    upkeep::count(&app_at_end).await;
    if tokio::time::timeout(DRAIN, upkeep).await.is_err() {
        tracing::warn!("the audit log was not written in {} s", DRAIN.as_secs());
    }
    if let Err(e) = upkeep::write_used(&app_at_end).await {
        tracing::warn!(error = %e, "last use of keys not written");
    }
    store.close().await;
    tracing::info!("stopped");
    Ok(())
}

/// Resolves on SIGTERM or ctrl-c.
pub async fn signalled() {
    let interrupt = async {
        if let Err(e) = tokio::signal::ctrl_c().await {
            tracing::error!(error = %e, "ctrl-c is not heard");
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => tokio::select! { () = interrupt => {}, _ = terminate.recv() => {} },
            Err(_) => interrupt.await,
        }
    }
    #[cfg(not(unix))]
    interrupt.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(host: &str, port: u16) -> String {
        let mut config = Config::for_testing(std::path::Path::new("unused"));
        (config.bind.host, config.bind.port) = (host.into(), port);
        format!("{:#}", bind(&config).await.unwrap_err())
    }

    #[tokio::test]
    async fn a_port_is_blamed_only_for_being_taken() {
        let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let taken = holder.local_addr().unwrap().port();
        let text = refusal("127.0.0.1", taken).await;
        assert!(text.starts_with(&format!("cannot listen on 127.0.0.1:{taken}; --port takes another port")), "{text}");
        // Of a block that is for documentation alone (RFC 5737).
        let text = refusal("192.0.2.1", 0).await;
        assert!(text.contains("192.0.2.1 is no address of this machine") && !text.contains("--port"), "{text}");
    }
}
