//! What each subcommand starts: logging, models, engine, server.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;

use crate::api;
use crate::config::Config;
use crate::config::backup::BackupArgs;
use crate::config::client::RollbackArgs;
use crate::config::doctor::DoctorArgs;
use crate::config::env::Env;
use crate::config::keys::KeyCommand;
use crate::config::models::ModelSource as From;
use crate::config::serve::ServeArgs;
use crate::engine::{self, ModelSource};
use crate::futures::ledger::Ledger;
use crate::recipes::{demo, demo_model};
use crate::{backup, doctor, hub, keys, rollback, server};

/// The demo's model, as clients name it, and the key its client shows.
const DEMO_MODEL: &str = "demo/adder";
const DEMO_KEY: &str = "tml-demo";
const DEMO_SEED: u64 = 7;

/// A process whose engine breaks down earlier is not replaced by a new one.
const BREAKDOWNS: Duration = Duration::from_secs(30);
/// Its exit status then: EX_SOFTWARE.
const BROKEN: i32 = 70;

/// Below this many file descriptors the server says so at its start: 8192 long polls, files and the database.
const DESCRIPTORS_MIN: u64 = 10_000;

/// `tinderbox serve`: until ctrl-c or SIGTERM.
pub fn serve(args: ServeArgs) -> anyhow::Result<()> {
    log("info,sqlx=warn");
    let config = Config::new(args, &Env::from_process()?)?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // First, since it makes the data directory as it has to be.
    let _lock = server::data_dir::open(&config.store.data_dir)?;
    // Before anything may make the database.
    let users_mask = server::private::keep_files_private();
    // Database and port before the models are loaded: one that cannot be had is found out at once.
    let store = runtime.block_on(server::open_store(&config))?;
    let listener = runtime.block_on(server::bind(&config))?;
    let (ledger, restored) = server::open_ledger(&config)?;
    runtime.block_on(server::sweep_snapshots(&config, &store))?;
    let models = users_mask.during(|| model_sources(&config))?;
    let engine = engine(&config, &models, &ledger)?;
    runtime.block_on(server::run(config, store, (ledger, restored), engine, listener, server::signalled()))
}

/// `tinderbox key`.
pub fn key(command: KeyCommand) -> anyhow::Result<()> {
    log("warn");
    // The database may be made here.
    server::private::keep_files_private();
    let streams = keys::Streams { out: &mut std::io::stdout(), err: &mut std::io::stderr() };
    keys::run(command, &Env::from_process()?, streams)
}

/// `tinderbox rollback`.
pub fn roll_back(args: &RollbackArgs) -> anyhow::Result<()> {
    rollback::run(args, &Env::from_process()?, &mut std::io::stdout())
}

/// `tinderbox backup`.
pub fn backup(args: BackupArgs) -> anyhow::Result<()> {
    log("warn");
    server::private::keep_files_private();
    backup::run(args, &Env::from_process()?, &mut std::io::stderr())
}

/// `tinderbox doctor`. → whether nothing is wrong.
pub fn doctor(args: DoctorArgs) -> anyhow::Result<bool> {
    log("off");
    let streams = doctor::Streams { out: &mut std::io::stdout(), err: &mut std::io::stderr() };
    doctor::run(args, &Env::from_process()?, streams)
}

/// `tinderbox demo`: a server in a folder of its own, and the two loops against it.
pub fn demo() -> anyhow::Result<()> {
    log("warn");
    demo_in(tempfile::tempdir()?.path())
}

fn demo_in(folder: &std::path::Path) -> anyhow::Result<()> {
    let model = folder.join("model");
    demo_model::write(&model, DEMO_SEED)?;
    let args = ServeArgs {
        model: vec![format!("{DEMO_MODEL}={}", model.display())],
        data_dir: Some(folder.join("data")),
        ..ServeArgs::default()
    };
    let mut config = Config::new(args, &Env::empty())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = match runtime.block_on(server::bind(&config)) {
        Ok(listener) => listener,
        Err(_) => {
            config.bind.port = 0;
            runtime.block_on(server::bind(&config))?
        }
    };
    let url = format!("http://{}", listener.local_addr()?);
    let store = runtime.block_on(server::open_store(&config))?;
    let (ledger, restored) = server::open_ledger(&config)?;
    let engine = engine(&config, &model_sources(&config)?, &ledger)?;
    runtime.block_on(async {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server::run(config, store, (ledger, restored), engine, listener, async {
            let _ = stopped.await;
        }));
        let trained = tokio::select! {
            trained = demo::run(&url, DEMO_KEY, DEMO_MODEL, &model) => trained,
            () = server::signalled() => Ok(()),
        };
        if trained.is_ok() && std::io::stdout().is_terminal() {
            eprintln!("\nThe server is up on {url}; ctrl-c ends it.");
            server::signalled().await;
        } else if trained.is_ok() {
            eprintln!("\nThe server ends now: run this in a terminal, or start tinderbox serve, to try it.");
        }
        let _ = stop.send(());
        serving.await??;
        trained
    })
}

/// Every long poll holds a connection, and a connection is a file descriptor: as many as the system lets a process have.
fn raise_descriptor_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) if limit < DESCRIPTORS_MIN => {
            tracing::warn!(
                limit,
                "few file descriptors: raise the hard limit (ulimit -Hn) before thousands of clients connect"
            );
        }
        Ok(_) => {}
        Err(e) => tracing::warn!(error = %e, "the limit on file descriptors stays as it is"),
    }
}

/// `tinderbox openapi`: as it is kept in openapi/openapi.json.
pub fn openapi() -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{:#}", api::openapi::document())?)
}

/// Where the models lie; those of the hub are fetched.
fn model_sources(config: &Config) -> anyhow::Result<Vec<ModelSource>> {
    let mut sources = Vec::new();
    for model in &config.models {
        let dir = match &model.source {
            From::Dir(dir) => dir.clone(),
            From::Hub(id) => hub::resolve(id, &config.hub.cache_dir, config.hub.offline)?,
        };
        sources.push(ModelSource { name: model.name.clone(), dir });
    }
    Ok(sources)
}

fn engine(config: &Config, models: &[ModelSource], ledger: &Ledger) -> anyhow::Result<engine::handle::Handle> {
    let (keeper, started) = (Arc::new(ledger.clone()), Instant::now());
    Ok(engine::spawn(models, &config.device, &config.store.data_dir, &config.limits, keeper, move || {
        begin_anew(started)
    })?)
}

/// The engine has broken down. This process becomes a fresh one, which goes on from what was kept: clients notice a restart.
/// One that breaks down at once again ends, for whoever watches over it.
fn begin_anew(started: Instant) {
    let lived = started.elapsed();
    tracing::error!(seconds = lived.as_secs(), "the engine broke down");
    #[cfg(unix)]
    if lived > BREAKDOWNS {
        use std::os::unix::process::CommandExt;
        let mut arguments = Env::arguments();
        if let (Some(program), Ok(this)) = (arguments.next(), Env::executable()) {
            tracing::error!("starting anew: what was accepted is not lost");
            let e = std::process::Command::new(this).arg0(program).args(arguments).exec();
            tracing::error!(error = %e, "the new process does not start");
        }
    }
    std::process::exit(BROKEN);
}

/// To stderr; `RUST_LOG` decides what, `default` where it is not set.
fn log(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let color = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color).init();
}
