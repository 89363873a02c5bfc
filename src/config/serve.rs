//! The command line of `tinderbox serve`.

use std::fmt;
use std::path::PathBuf;

use super::device::{DeviceChoice, Dtype};
use super::durability::Durability;
use super::public_url::PublicUrl;

/// A value given here wins over its environment variable.
#[derive(Clone, Default, clap::Args)]
pub struct ServeArgs {
    /// A model to serve: a Hugging Face model directory, or a hub id (ORG/NAME) that is in the hub's local cache or
    /// can be downloaded. Clients ask for it as NAME, which may hold `/` and defaults to the directory's last part or
    /// to the hub id. Repeat the flag for more models [env: TINDERBOX_MODEL, comma separated]
    #[arg(long, value_name = "[NAME=]DIR|HUB_ID")]
    pub model: Vec<String>,

    /// Address to listen on; anything beyond this machine needs a key: --api-key or `tinderbox key create` [default: 127.0.0.1] [env: TINDERBOX_HOST]
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,

    /// Port to listen on; 0 takes a free one [default: 8000] [env: TINDERBOX_PORT]
    #[arg(long, value_name = "PORT", value_parser = super::bind::port)]
    pub port: Option<u16>,

    /// Where checkpoints and the embedded database live [default: `tinderbox` in the user's data directory]
    /// [env: TINDERBOX_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// sqlite:FILE or postgres://USER:PASSWORD@HOST/DATABASE [default: an SQLite file in the data directory]
    /// [env: TINDERBOX_DATABASE_URL, DATABASE_URL]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,

    /// What computes: auto, cpu (or flex, its backend), wgpu, vulkan, cuda:N or rocm:N, as far as this binary was built for it;
    /// auto takes a CUDA or ROCm GPU, else the CPU [default: auto] [env: TINDERBOX_DEVICE]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    /// Type the base weights are kept in, whatever their files hold: f32 or bf16 [default: f32] [env: TINDERBOX_DTYPE]
    #[arg(long, value_name = "DTYPE")]
    pub dtype: Option<Dtype>,

    /// A key clients must present, beginning with `tml-`; each is an account of its own. Repeat the flag for more;
    /// `tinderbox key create` makes keys that need no flag. Without any, every `tml-` key is accepted, on loopback only
    /// [env: TINDERBOX_API_KEY, comma separated]
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,

    /// grouped: a power cut may cost the last 200 ms of accepted requests; strict: nothing, each is on the disk before it is
    /// promised. A killed process loses nothing either way [default: grouped] [env: TINDERBOX_DURABILITY]
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<Durability>,

    /// Where clients reach the server when that is not the address they connect to, as behind a proxy; download links
    /// begin with it [default: as the request says] [env: TINDERBOX_PUBLIC_URL]
    #[arg(long, value_name = "URL")]
    pub public_url: Option<PublicUrl>,
}

/// Hides keys and the database's password.
impl fmt::Debug for ServeArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeArgs")
            .field("model", &self.model)
            .field("host", &self.host)
            .field("port", &self.port)
            .field("data_dir", &self.data_dir)
            .field("database_url", &self.database_url.as_deref().map(super::store::redacted))
            .field("device", &self.device)
            .field("dtype", &self.dtype)
            .field("durability", &self.durability)
            .field("api_keys", &self.api_key.len())
            .field("public_url", &self.public_url)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    fn parse(line: &str) -> Result<ServeArgs, clap::Error> {
        let command = ServeArgs::augment_args(clap::Command::new("serve"));
        let matches = command.try_get_matches_from(std::iter::once("serve").chain(line.split_whitespace()))?;
        ServeArgs::from_arg_matches(&matches)
    }

    #[test]
    fn the_documented_command_line() {
        let args = parse(
            "--model Qwen/Qwen3-8B=models/qwen3 --model b --host ::1 --port 9000 --data-dir d --database-url sqlite:x \
             --device cuda:0 --dtype bf16 --api-key tml-a --api-key tml-b --public-url https://t.example/x/",
        )
        .unwrap();
        assert_eq!(args.model, ["Qwen/Qwen3-8B=models/qwen3", "b"]);
        assert_eq!((args.host.as_deref(), args.port), (Some("::1"), Some(9000)));
        assert_eq!((args.device, args.dtype), (Some(DeviceChoice::Cuda(0)), Some(Dtype::Bf16)));
        assert_eq!(args.api_key, ["tml-a", "tml-b"]);
        assert_eq!(args.public_url.unwrap().as_str(), "https://t.example/x");
    }

    #[test]
    fn wrong_values_are_refused_with_the_accepted_forms() {
        let message = parse("--device gpu").unwrap_err().to_string();
        assert!(message.contains("cuda:N"), "{message}");
        assert!(parse("--dtype f16").unwrap_err().to_string().contains("bf16"));
        for port in ["70000", "abc", "-1"] {
            let message = parse(&format!("--port={port}")).unwrap_err().to_string();
            assert!(message.contains(&format!("'{port}'")) && message.contains("from 0 to 65535"), "{message}");
        }
    }
}
