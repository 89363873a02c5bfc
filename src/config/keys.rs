//! The command line of `tinderbox key`.

use std::path::PathBuf;
use std::str::FromStr;

use super::quotas::Quotas;
use crate::error::{Error, Result};

#[derive(Clone, Debug, clap::Subcommand)]
pub enum KeyCommand {
    /// Make a key, print it once and keep only its hash. A running server accepts it within 2 seconds.
    Create(CreateArgs),
    /// Show the keys, without their secrets.
    List(PlaceArgs),
    /// End every usable key of this name, or the one of this id, within 2 seconds; its tokens too.
    Revoke(RevokeArgs),
    /// Give the account of a key a new secret and print it once; the old one ends.
    Rotate(RotateArgs),
}

/// The database that the server uses.
#[derive(Clone, Default, clap::Args)]
pub struct PlaceArgs {
    /// The server's data directory [default: `tinderbox` in the user's data directory] [env: TINDERBOX_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// The server's database, when it is not the SQLite file in its data directory
    /// [env: TINDERBOX_DATABASE_URL, DATABASE_URL]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub struct CreateArgs {
    /// What the key is called in lists: 1 to 64 of `A-Z a-z 0-9 . _ @ + -`, not digits alone
    #[arg(long)]
    pub name: KeyName,

    /// The account whose data the key opens, as `key list` shows it; `local` owns what was made before the first key
    /// [default: a new account]
    #[arg(long, value_name = "ACCOUNT")]
    pub owner: Option<AccountName>,

    /// The key ends by itself after so many seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = lifetime)]
    pub expires_in: Option<u32>,

    #[command(flatten)]
    pub quotas: QuotaArgs,

    #[command(flatten)]
    pub place: PlaceArgs,
}

/// A quota that is not given is no limit.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct QuotaArgs {
    /// Share of the device's time: an account of weight 2 gets twice that of one of weight 1 [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = weight)]
    pub weight: Option<f64>,

    /// Training runs alive at once
    #[arg(long, value_name = "N", value_parser = number)]
    pub max_runs: Option<u64>,

    #[arg(long, value_name = "N", value_parser = number, help = "Requests accepted in a minute")]
    pub requests_per_minute: Option<u64>,

    #[arg(long, value_name = "N", value_parser = number, help = "Tokens trained on and sampled in a minute")]
    pub tokens_per_minute: Option<u64>,

    /// Requests waiting or running at once
    #[arg(long, value_name = "N", value_parser = number)]
    pub pending_requests: Option<u64>,

    /// Checkpoints on disk, in bytes
    #[arg(long, value_name = "BYTES", value_parser = number)]
    pub disk_bytes: Option<u64>,
}

#[derive(Clone, Debug, clap::Args)]
pub struct RevokeArgs {
    /// Name or id of a key
    #[arg(value_name = "NAME|ID")]
    pub key: String,

    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct RotateArgs {
    /// Name of a key
    pub name: KeyName,

    /// The old secret goes on working for so long, so that clients can be changed over [default: 0]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value_t = 0, hide_default_value = true)]
    pub keep_old_for: u32,

    #[command(flatten)]
    pub place: PlaceArgs,
}

impl QuotaArgs {
    pub fn quotas(self) -> Quotas {
        let Self { weight, max_runs, requests_per_minute, tokens_per_minute, pending_requests, disk_bytes } = self;
        let weight = weight.unwrap_or(Quotas::default().weight);
        Quotas { weight, max_runs, requests_per_minute, tokens_per_minute, pending_requests, disk_bytes }
    }
}

/// A key's name. Never digits alone, so that it cannot be taken for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName(pub String);

impl FromStr for KeyName {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        if is_name(s) && !s.bytes().all(|b| b.is_ascii_digit()) {
            return Ok(Self(s.into()));
        }
        Err(Error::user("a name has 1 to 64 characters from A-Z a-z 0-9 . _ @ + - and is not digits alone"))
    }
}

/// The id of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountName(pub String);

impl FromStr for AccountName {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        if is_name(s) {
            return Ok(Self(s.into()));
        }
        Err(Error::user("an account has 1 to 64 characters from A-Z a-z 0-9 . _ @ + -"))
    }
}

fn is_name(s: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._@+-".contains(&b);
    (1..=64).contains(&s.len()) && s.bytes().all(allowed)
}

fn weight(s: &str) -> Result<f64> {
    let number = s.parse::<f64>().ok().filter(|w| (0.001..=1000.0).contains(w));
    number.ok_or_else(|| Error::user("a weight lies between 0.001 and 1000"))
}

fn number(s: &str) -> Result<u64> {
    s.parse().map_err(|_| Error::user("give a whole number"))
}

fn seconds(s: &str) -> Result<u32> {
    s.parse().map_err(|_| Error::user(format!("give a whole number of seconds from 0 to {}", u32::MAX)))
}

fn lifetime(s: &str) -> Result<u32> {
    let number = s.parse().ok().filter(|n| *n >= 1);
    number.ok_or_else(|| Error::user(format!("give a whole number of seconds from 1 to {}", u32::MAX)))
}

/// Hides the database's password.
impl std::fmt::Debug for PlaceArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlaceArgs")
            .field("data_dir", &self.data_dir)
            .field("database_url", &self.database_url.as_deref().map(super::store::redacted))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Subcommand};

    fn parse(line: &str) -> Result<KeyCommand, clap::Error> {
        let command = KeyCommand::augment_subcommands(clap::Command::new("key"));
        let matches = command.try_get_matches_from(std::iter::once("key").chain(line.split_whitespace()))?;
        KeyCommand::from_arg_matches(&matches)
    }

    #[test]
    fn the_documented_command_lines() {
        let KeyCommand::Create(args) =
            parse("create --name ann@lab --weight 2 --max-runs 4 --disk-bytes 1000 --data-dir d").unwrap()
        else {
            panic!("create");
        };
        assert_eq!((args.name.0.as_str(), args.owner, args.expires_in), ("ann@lab", None, None));
        let quotas = Quotas { weight: 2.0, max_runs: Some(4), disk_bytes: Some(1000), ..Quotas::default() };
        assert_eq!(args.quotas.quotas(), quotas);
        let KeyCommand::Rotate(args) = parse("rotate ann --keep-old-for 60").unwrap() else { panic!("rotate") };
        assert_eq!((args.name.0.as_str(), args.keep_old_for), ("ann", 60));
        assert!(matches!(parse("revoke 7 --database-url sqlite:x"), Ok(KeyCommand::Revoke(a)) if a.key == "7"));
        assert!(matches!(parse("list"), Ok(KeyCommand::List(_))));
    }

    #[test]
    fn names_and_weights_out_of_range_are_refused_with_the_range() {
        let long = "a".repeat(65);
        for name in ["7", "a b", "ä", long.as_str()] {
            assert!(name.parse::<KeyName>().unwrap_err().message.contains("1 to 64"), "{name}");
        }
        for weight in ["0", "-1", "NaN", "inf", "1001", "x"] {
            let message = parse(&format!("create --name a --weight={weight}")).unwrap_err().to_string();
            assert!(message.contains("0.001 and 1000"), "{message}");
        }
        for (line, wanted) in [
            ("create --name a --max-runs many", "'many' for '--max-runs <N>': give a whole number"),
            (
                "create --name a --expires-in 1d",
                "'1d' for '--expires-in <SECONDS>': give a whole number of seconds from 1",
            ),
            ("create --name a --expires-in 0", "give a whole number of seconds from 1"),
            ("rotate a --keep-old-for 1h", "give a whole number of seconds from 0"),
        ] {
            let message = parse(line).unwrap_err().to_string();
            assert!(message.contains(wanted), "{message}");
        }
        assert!(parse("create").is_err());
    }
}
