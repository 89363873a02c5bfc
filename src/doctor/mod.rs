//! `tinderbox doctor`: looks at an installation, or at any Tinker address, and says what to do about what is wrong.

mod address;
mod advice;
mod clock;
mod data_dir;
mod database;
mod line;
mod machine;
mod models;
mod patience;
mod port;
mod report;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::config::bind::Bind;
use crate::config::device::Device;
use crate::config::doctor::DoctorArgs;
use crate::config::env::Env;
use crate::config::store::Store as Place;
use line::Line;

/// Where the report goes; `err` hears what is being looked at.
pub struct Streams<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
}

/// → whether nothing failed.
///
/// # Errors
/// The settings make no sense, or the report cannot be written.
pub fn run(args: DoctorArgs, env: &Env, streams: Streams) -> anyhow::Result<bool> {
    let Streams { out, err } = streams;
    let limit = Duration::from_secs(args.timeout);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let lines = match &args.url {
        Some(url) => {
            let wanted = args.model.first().map(String::as_str);
            runtime.block_on(address::check(url, &args.key(env), wanted, limit))
        }
        None => installation(&args, env, limit, &runtime, err)?,
    };
    // A call that hangs does not hold the report up.
    runtime.shutdown_background();
    match args.json {
        true => report::as_json(&lines, out)?,
        false => report::as_table(&lines, std::io::stdout().is_terminal(), out)?,
    }
    Ok(report::is_well(&lines))
}

fn installation(
    args: &DoctorArgs,
    env: &Env,
    limit: Duration,
    runtime: &tokio::runtime::Runtime,
    err: &mut dyn Write,
) -> anyhow::Result<Vec<Line>> {
    let device = Device::new(args.device, args.dtype, env)?;
    let place = Place::new(args.data_dir.clone(), args.database_url.clone(), env)?;
    let bind = Bind::new(args.host.clone(), args.port, env)?;
    let shows = std::io::stderr().is_terminal() && !args.json;
    let mut tells = |what: &str| {
        // That nobody reads it is no fault.
        if shows {
            let _ = writeln!(err, "looking at {what} …");
        }
    };
    tells("device and memory");
    let mut lines = machine::check(device.choice, limit);
    tells("models");
    lines.extend(models::check(args.model.clone(), env, device.dtype, limit));
    tells("the data directory");
    lines.extend(data_dir::check(&place.data_dir, limit));
    tells("the database");
    let (of_database, database_now) = runtime.block_on(database::check(&place, limit));
    lines.extend(of_database);
    tells("the port");
    lines.extend(runtime.block_on(port::check(&bind, limit.min(port::PATIENCE))));
    lines.extend(clock::check(&place.data_dir, database_now));
    Ok(lines)
}
