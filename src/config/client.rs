//! The command line of what speaks to a running server.

use super::env::Env;

/// Where the server is, and who asks.
#[derive(Clone, clap::Args)]
pub struct ServerArgs {
    /// Address of the server [default: http://127.0.0.1:8000] [env: TINKER_BASE_URL]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// The key to present [default: tml-local, for servers without keys] [env: TINKER_API_KEY]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
}

impl ServerArgs {
    pub fn url(&self, env: &Env) -> String {
        self.url.clone().or_else(|| env.get("TINKER_BASE_URL").map(str::to_owned)).unwrap_or_else(|| URL.into())
    }

    pub fn api_key(&self, env: &Env) -> String {
        self.api_key.clone().or_else(|| env.get("TINKER_API_KEY").map(str::to_owned)).unwrap_or_else(|| KEY.into())
    }
}

const URL: &str = "http://127.0.0.1:8000";
const KEY: &str = "tml-local";

#[derive(Clone, clap::Args)]
pub struct RollbackArgs {
    /// The run's id, as `training_runs` lists it
    pub run: String,

    #[command(flatten)]
    pub server: ServerArgs,
}
