//! What the server is told from outside: flags and environment, read once, a small struct per concern.

pub mod auth;
pub mod backup;
pub mod bind;
pub mod client;
pub mod device;
pub mod doctor;
pub mod durability;
pub mod env;
pub mod hub;
pub mod keys;
pub mod limits;
pub mod models;
pub mod public_url;
pub mod quotas;
pub mod serve;
pub mod store;

use std::path::Path;

use crate::error::Result;

use auth::Auth;
use bind::Bind;
use device::{Device, DeviceChoice, Dtype};
use durability::Durability;
use env::Env;
use hub::Hub;
use limits::Limits;
use models::ModelArg;
use public_url::PublicUrl;
use quotas::Quotas;
use serve::ServeArgs;
use store::Store;

/// Everything `tinderbox serve` needs to know. `Debug` shows neither keys nor passwords.
#[derive(Clone, Debug)]
pub struct Config {
    pub models: Vec<ModelArg>,
    pub bind: Bind,
    pub store: Store,
    pub device: Device,
    pub durability: Durability,
    pub auth: Auth,
    pub hub: Hub,
    pub limits: Limits,
    /// Of accounts that have none of their own.
    pub quotas: Quotas,
    /// Where clients reach the server, when it was said.
    pub public_url: Option<PublicUrl>,
}

impl Config {
    /// A flag wins over its environment variable, that over the default.
    ///
    /// Errors are the user's and name the flag or variable, the value and what is accepted.
    pub fn new(args: ServeArgs, env: &Env) -> Result<Self> {
        let auth = Auth::new(args.api_key, env)?;
        Ok(Self {
            models: models::from_args(args.model, env)?,
            bind: Bind::new(args.host, args.port, env)?,
            store: Store::new(args.data_dir, args.database_url, env)?,
            device: Device::new(args.device, args.dtype, env)?,
            durability: given(args.durability, env, "TINDERBOX_DURABILITY")?.unwrap_or_default(),
            auth,
            hub: Hub::from_env(env),
            limits: Limits::from_env(env)?,
            quotas: Quotas::from_env(env)?,
            public_url: given(args.public_url, env, "TINDERBOX_PUBLIC_URL")?,
        })
    }

    /// No models, a free port on loopback, no keys, SQLite in `data_dir`, the CPU.
    pub fn for_testing(data_dir: &Path) -> Self {
        Self {
            models: Vec::new(),
            bind: Bind { host: "127.0.0.1".into(), port: 0 },
            store: Store::in_dir(data_dir),
            device: Device { choice: DeviceChoice::Flex, dtype: Dtype::F32 },
            durability: Durability::default(),
            auth: Auth::default(),
            hub: Hub { cache_dir: data_dir.join("hub"), offline: true },
            limits: Limits::default(),
            quotas: Quotas::default(),
            public_url: None,
        }
    }
}

/// The flag, or else the parsed environment variable.
fn given<T>(flag: Option<T>, env: &Env, variable: &'static str) -> Result<Option<T>>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    match flag {
        Some(value) => Ok(Some(value)),
        None => env.parse(variable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model_dir() -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        (dir, path)
    }

    #[test]
    fn a_flag_wins_over_its_variable_and_that_over_the_default() {
        let (_dir, path) = model_dir();
        let env = Env::for_testing(&[
            ("TINDERBOX_PORT", "9001"),
            ("TINDERBOX_HOST", "localhost"),
            ("TINDERBOX_DEVICE", "cuda:1"),
            ("TINDERBOX_MODEL", &format!("a={path},b={path}")),
            ("TINDERBOX_DATA_DIR", "/srv/tb"),
        ]);
        let config = Config::new(ServeArgs { port: Some(9002), ..ServeArgs::default() }, &env).unwrap();
        assert_eq!(config.bind.address(), "localhost:9002");
        assert_eq!(config.device.choice, DeviceChoice::Cuda(1));
        assert_eq!(config.device.dtype, Dtype::F32);
        assert_eq!(config.models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(config.store.url, "sqlite:/srv/tb/tinderbox.db");
    }

    #[test]
    fn debug_output_hides_secrets() {
        let (_dir, path) = model_dir();
        let env = Env::for_testing(&[("DATABASE_URL", "postgres://u:s3cret@db/x"), ("HOME", "/home/u")]);
        let args = ServeArgs { model: vec![path], api_key: vec!["tml-s3cret".into()], ..ServeArgs::default() };
        let text = format!("{args:?} {:?} {env:?}", Config::new(args.clone(), &env).unwrap());
        assert!(!text.contains("s3cret"), "{text}");
    }
}
