//! The command line: `tinderbox serve`, `key`, `backup`, `doctor`, `demo`, `rollback` and `openapi`.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tinderbox::config::backup::BackupArgs;
use tinderbox::config::client::RollbackArgs;
use tinderbox::config::doctor::DoctorArgs;
use tinderbox::config::keys::KeyCommand;
use tinderbox::config::serve::ServeArgs;
use tinderbox::start;

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
    #[command(after_help = tinderbox::config::env::help())]
    Serve(ServeArgs),
    /// Make, list, withdraw and replace the keys that clients of a server need, also while it runs.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Copy the data directory of a server, running or not: database, checkpoints, and what runs need to go on.
    Backup(BackupArgs),
    /// Check this installation, or with --url any Tinker address call by call; say what is wrong and what to do. The exit
    /// status is 0 when nothing failed, else 1.
    Doctor(DoctorArgs),
    /// Start a server on a tiny model of its own, and train that model on it: supervised, then by reinforcement.
    /// Needs no model and no network. In a terminal the server stays up afterwards, until ctrl-c.
    Demo,
    /// Take a training run whose weights have diverged back to its last good state.
    Rollback(RollbackArgs),
    /// Print the OpenAPI document of the server's API.
    Openapi,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => start::serve(args),
        Command::Key(command) => start::key(command),
        Command::Backup(args) => start::backup(args),
        Command::Doctor(args) => match start::doctor(args) {
            Ok(false) => return ExitCode::FAILURE,
            done => done.map(drop),
        },
        Command::Demo => start::demo(),
        Command::Rollback(args) => start::roll_back(&args),
        Command::Openapi => start::openapi(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // A filter of the user's own, such as an empty RUST_LOG, may silence the log, but not this.
            if tracing::enabled!(tracing::Level::ERROR) {
                tracing::error!("{e:#}");
            } else {
                let _ = writeln!(std::io::stderr(), "tinderbox: {e:#}");
            }
            ExitCode::FAILURE
        }
    }
}
