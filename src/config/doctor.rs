//! The command line of `tinderbox doctor`.

use std::fmt;
use std::path::PathBuf;

use super::device::{DeviceChoice, Dtype};
use super::env::Env;

/// Without --url this installation is looked at, as `tinderbox serve` with the same flags and variables would use it.
#[derive(Clone, Default, clap::Args)]
pub struct DoctorArgs {
    /// Check any Tinker address instead, call by call: http://HOST:PORT, without /api/v1
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,

    /// The key for that address [default: tml-local] [env: TINKER_API_KEY]
    #[arg(long, value_name = "KEY", requires = "url")]
    pub api_key: Option<String>,

    /// No call to an address takes longer than that; neither does a check of this machine
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,

    /// A model that would be served, as [NAME=]DIR or ORG/NAME of the hub; with --url, the name of a served model to try
    /// [default: the first one that is served] [env: TINDERBOX_MODEL, comma separated]
    #[arg(long, value_name = "MODEL")]
    pub model: Vec<String>,

    /// As of `tinderbox serve` [env: TINDERBOX_DATA_DIR]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub data_dir: Option<PathBuf>,

    /// As of `tinderbox serve` [env: TINDERBOX_DATABASE_URL, DATABASE_URL]
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub database_url: Option<String>,

    /// As of `tinderbox serve` [env: TINDERBOX_HOST]
    #[arg(long, value_name = "HOST", conflicts_with = "url")]
    pub host: Option<String>,

    /// As of `tinderbox serve` [env: TINDERBOX_PORT]
    #[arg(long, value_name = "PORT", value_parser = super::bind::port, conflicts_with = "url")]
    pub port: Option<u16>,

    /// As of `tinderbox serve` [env: TINDERBOX_DEVICE]
    #[arg(long, value_name = "DEVICE", conflicts_with = "url")]
    pub device: Option<DeviceChoice>,

    /// As of `tinderbox serve` [env: TINDERBOX_DTYPE]
    #[arg(long, value_name = "DTYPE", conflicts_with = "url")]
    pub dtype: Option<Dtype>,

    /// One JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

impl DoctorArgs {
    /// The key that is presented to an address.
    pub fn key(&self, env: &Env) -> String {
        let key = self.api_key.as_deref().or(env.get("TINKER_API_KEY"));
        key.unwrap_or("tml-local").to_owned()
    }
}

/// Hides the key and the database's password.
impl fmt::Debug for DoctorArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoctorArgs").field("url", &self.url).field("model", &self.model).finish_non_exhaustive()
    }
}
