//! The server: store, promises and routes around an engine, until it is told to stop.

mod connections;
pub mod lock;
pub mod private;
mod sweep;
mod upkeep;

use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use chrono::Utc;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::api;
use crate::api::state::App;
use crate::checkpoint;
use crate::checkpoint::links::Links;
use crate::config::Config;
use crate::engine::handle::Handle;
use crate::store::Store;

/// Requests in flight get this long to end after the signal.
const DRAIN: Duration = Duration::from_secs(10);

/// Takes the port. Errors name the address.
pub async fn bind(config: &Config) -> anyhow::Result<TcpListener> {
    let address = config.bind.address();
    let context = || format!("cannot listen on {address}; --port takes another port, 0 a free one");
    TcpListener::bind(&address).await.with_context(context)
}

/// Beyond this machine a server needs a key, from a flag or in its database.
pub async fn refuse_open_network(config: &Config) -> anyhow::Result<()> {
    let mut keys = !config.auth.keys.is_empty();
    if !keys && !config.bind.is_loopback() {
        let store = Store::open(&config.store.url).await?;
        keys = !store.keys().await?.is_empty();
        store.close().await;
    }
    Ok(config.bind.refuse_open_network(keys)?)
}

/// Serve on `listener` until `shutdown` resolves, then drain: long polls are answered at once, no new connection is
/// taken, the engine stops.
pub async fn run(
    config: Config,
    engine: Handle,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    checkpoint::write::sweep(&config.store.data_dir)?;
    let store = Store::open(&config.store.url).await?;
    let links = Links::open(&config.store.data_dir)?;
    let address = listener.local_addr()?;
    let app = App::new(config, engine.clone(), store.clone(), links);
    sweep::orphans(&app.checkpoints_dir(), &store).await?;
    upkeep::refresh_keys(&app).await?;
    let router = api::router(app.clone());
    let sweeper = tokio::spawn(sweep::forever(app.clone()));
    let app_at_end = app.clone();
    let models: Vec<&str> = engine.models().iter().map(|m| m.name.as_str()).collect();
    tracing::info!(models = models.join(", "), keys = app.keys().usable(Utc::now()), "ready on http://{address}");

    let (stop, mut stopping) = watch::channel(false);
    let upkeep = tokio::spawn(upkeep::until(app.clone(), stopping.clone()));
    let signal = async move {
        shutdown.await;
        tracing::info!("stopping: no new requests, up to {} s for those in flight", DRAIN.as_secs());
        app.futures().close();
        stop.send_replace(true);
    };
    let serving = connections::serve(listener, router, connections::HEAD_TIME, signal);
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
