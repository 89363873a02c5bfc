//! `tinderbox rollback`: takes a run back to its last good state, on a running server.

use std::io::Write;

use tinderbox_client::RestClient;

use crate::config::client::RollbackArgs;
use crate::config::env::Env;

pub fn run(args: &RollbackArgs, env: &Env, out: &mut impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = RestClient::connect(&args.server.url(env), &args.server.api_key(env))?;
    let told = runtime.block_on(client.roll_back(&args.run))?;
    let (run, before) = (told.training_run_id, told.before_seq_id);
    Ok(writeln!(out, "run {run} is what it was before the request with seq_id {before}")?)
}
