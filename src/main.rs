//! The command line: `tinderbox serve` and `tinderbox demo`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tinderbox::config::Config;
use tinderbox::config::env::Env;
use tinderbox::config::models::ModelSource as From;
use tinderbox::config::serve::ServeArgs;
use tinderbox::engine::{self, ModelSource};
use tinderbox::{hub, server};
use tracing_subscriber::EnvFilter;

/// Fine-tune language models with SFT and RL on your own machine through the open Tinker API.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve models to Tinker clients, in the foreground, until ctrl-c or SIGTERM.
    Serve(ServeArgs),
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn"));
    let color = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color).init();
    let Command::Serve(args) = Cli::parse().command;
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The port is taken before the models are loaded: a busy one is found out at once.
fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let config = Config::new(args, &Env::from_process()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(server::bind(&config))?;
    let mut sources = Vec::new();
    for model in &config.models {
        let dir = match &model.source {
            From::Dir(dir) => dir.clone(),
            From::Hub(id) => hub::resolve(id, &config.hub.cache_dir, config.hub.offline)?,
        };
        sources.push(ModelSource { name: model.name.clone(), dir });
    }
    let engine = engine::spawn(&sources, &config.device.choice, &config.store.data_dir, &config.limits)?;
    runtime.block_on(server::run(config, engine, listener, server::signalled()))
}
