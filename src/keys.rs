//! `tinderbox key`: keys are made, shown and withdrawn in the server's database, whether a server runs or not.

use std::io::Write;

use anyhow::{Context, bail};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use rand::TryRngCore;
use serde_json::{Value, json};

use crate::config::auth::{PREFIX, sha256};
use crate::config::env::Env;
use crate::config::keys::{CreateArgs, KeyCommand, PlaceArgs, RevokeArgs, RotateArgs};
use crate::config::quotas::Quotas;
use crate::config::store::Store as Place;
use crate::ids::OwnerId;
use crate::store::Store;
use crate::store::keys::{KeyRow, NewKey};

/// Where a command writes: secrets and lists to `out`, so that a script can take them; all else to `err`.
pub struct Streams<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
}

/// Does what was asked, and says in which database.
pub fn run(command: KeyCommand, env: &Env, streams: Streams) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            KeyCommand::Create(args) => create(args, env, streams).await,
            KeyCommand::List(place) => list(place, env, streams).await,
            KeyCommand::Revoke(args) => revoke(args, env, streams).await,
            KeyCommand::Rotate(args) => rotate(args, env, streams).await,
        }
    })
}

async fn create(args: CreateArgs, env: &Env, mut streams: Streams<'_>) -> anyhow::Result<()> {
    let place = place(args.place, env)?;
    streams.names(&place)?;
    let store = Store::open(&place.url).await?;
    let secret = secret()?;
    let owner = args.owner.map_or_else(|| uuid::Uuid::new_v4().simple().to_string(), |owner| owner.0);
    let expires_at = args.expires_in.map(|s| Utc::now() + TimeDelta::seconds(s.into()));
    let quotas = args.quotas.quotas();
    let key = NewKey { name: args.name.0, owner: OwnerId(owner), hash: sha256(&secret), expires_at, quotas };
    let row = store.insert_key(key).await?;
    noted(&store, &row, "key_created", json!({})).await?;
    streams.shows(&row, &secret)
}

async fn list(args: PlaceArgs, env: &Env, mut streams: Streams<'_>) -> anyhow::Result<()> {
    let place = place(args, env)?;
    let store = existing(&place, &mut streams).await?;
    let now = Utc::now();
    let head = ["ID", "NAME", "ACCOUNT", "STATE", "CREATED", "LAST USED", "QUOTAS"].map(str::to_owned);
    let rows: Vec<[String; 7]> = store.keys().await?.iter().map(|key| columns(key, now)).collect();
    store.close().await;
    if rows.is_empty() {
        streams.tells(format_args!("no keys in {}", place.database()))?;
    }
    let all = || std::iter::once(&head).chain(&rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; 7] = std::array::from_fn(width);
    for row in all() {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(streams.out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

async fn revoke(args: RevokeArgs, env: &Env, mut streams: Streams<'_>) -> anyhow::Result<()> {
    let store = existing(&place(args.place, env)?, &mut streams).await?;
    let now = Utc::now();
    let meant = |key: &KeyRow| key.name == args.key || key.id.to_string() == args.key;
    let keys: Vec<KeyRow> = store.keys().await?.into_iter().filter(|k| meant(k) && k.ended(now).is_none()).collect();
    if keys.is_empty() {
        bail!("no usable key has the name or id {:?}; `tinderbox key list` shows them", args.key);
    }
    let ids: Vec<i64> = keys.iter().map(|key| key.id).collect();
    store.revoke_keys(&ids, now).await?;
    for key in &keys {
        noted(&store, key, "key_revoked", json!({ "by": "command" })).await?;
        let (name, id) = (&key.name, key.id);
        streams.tells(format_args!("key {name:?} (id {id}) is revoked; a running server refuses it within 2 s"))?;
    }
    store.close().await;
    Ok(())
}

async fn rotate(args: RotateArgs, env: &Env, mut streams: Streams<'_>) -> anyhow::Result<()> {
    let store = existing(&place(args.place, env)?, &mut streams).await?;
    let secret = secret()?;
    let old_ends = Utc::now() + TimeDelta::seconds(args.keep_old_for.into());
    let row = store.rotate_key(&args.name.0, sha256(&secret), old_ends).await?;
    noted(&store, &row, "key_rotated", json!({ "old_ends": time(old_ends) })).await?;
    streams.tells(format_args!("the old secret of {:?} ends {}", row.name, time(old_ends)))?;
    store.close().await;
    streams.shows(&row, &secret)
}

/// 256 bits of the system's randomness: a plain hash of them cannot be turned back.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).context("the system gives no random numbers")?;
    Ok(format!("{PREFIX}{}", hex::encode(bytes)))
}

async fn noted(store: &Store, row: &KeyRow, event: &str, mut details: Value) -> anyhow::Result<()> {
    details["key_id"] = row.id.into();
    details["key"] = row.name.as_str().into();
    store.note(Some(&row.owner), event, details);
    Ok(store.write_noted().await?)
}

impl Streams<'_> {
    fn tells(&mut self, text: impl std::fmt::Display) -> anyhow::Result<()> {
        Ok(writeln!(self.err, "{text}")?)
    }

    /// Before anything else, so that a forgotten --data-dir is noticed also when the rest fails.
    fn names(&mut self, place: &Place) -> anyhow::Result<()> {
        self.tells(format_args!("database: {}", place.database()))
    }

    fn shows(&mut self, row: &KeyRow, secret: &str) -> anyhow::Result<()> {
        writeln!(self.out, "{secret}")?;
        self.tells(format_args!(
            "key {:?} (id {}) of account {}: shown this once, so keep it. Clients send it as TINKER_API_KEY; a running \
             server accepts it within 2 s.",
            row.name, row.id, row.owner
        ))
    }
}

fn place(args: PlaceArgs, env: &Env) -> anyhow::Result<Place> {
    Ok(Place::new(args.data_dir, args.database_url, env)?)
}

/// The database, which a mistyped directory must not create.
async fn existing(place: &Place, streams: &mut Streams<'_>) -> anyhow::Result<Store> {
    streams.names(place)?;
    let own = *place == Place::in_dir(&place.data_dir);
    if own && !place.data_dir.join("tinderbox.db").exists() {
        bail!("{} holds no database; is it the server's --data-dir?", place.data_dir.display());
    }
    Ok(Store::open(&place.url).await?)
}

fn columns(key: &KeyRow, now: DateTime<Utc>) -> [String; 7] {
    let state = match (key.ended(now), key.revoked_at.into_iter().chain(key.expires_at).min()) {
        (Some(ended), _) => ended.to_owned(),
        (None, Some(end)) => format!("until {}", time(end)),
        (None, None) => "usable".to_owned(),
    };
    let used = key.last_used_at.map_or("-".into(), time);
    let (name, owner) = (key.name.clone(), key.owner.0.clone());
    [key.id.to_string(), name, owner, state, time(key.created_at), used, quotas(&key.quotas)]
}

fn quotas(quotas: &Quotas) -> String {
    let numbers = [
        ("max-runs", quotas.max_runs),
        ("requests-per-minute", quotas.requests_per_minute),
        ("tokens-per-minute", quotas.tokens_per_minute),
        ("pending-requests", quotas.pending_requests),
        ("disk-bytes", quotas.disk_bytes),
    ];
    let weight = Some(format!("weight {}", quotas.weight));
    let given = numbers.into_iter().filter_map(|(name, number)| Some(format!("{name} {}", number?)));
    weight.into_iter().chain(given).collect::<Vec<_>>().join(", ")
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Subcommand};
    use std::path::Path;

    fn key(dir: &Path, line: &str) -> anyhow::Result<String> {
        said(dir, line, &[]).map(|(out, _)| out)
    }

    /// What a command writes to each stream.
    fn said(dir: &Path, line: &str, env: &[(&str, &str)]) -> anyhow::Result<(String, String)> {
        let command = KeyCommand::augment_subcommands(clap::Command::new("key"));
        let words = ["key"].into_iter().chain(line.split_whitespace()).chain(["--data-dir", dir.to_str().unwrap()]);
        let command = KeyCommand::from_arg_matches(&command.try_get_matches_from(words)?)?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        run(command, &Env::for_testing(env), Streams { out: &mut out, err: &mut err })?;
        Ok((String::from_utf8(out)?, String::from_utf8(err)?))
    }

    /// Id, name, account and state of each listed key.
    fn listed(dir: &Path) -> Vec<[String; 4]> {
        let text = key(dir, "list").unwrap();
        let cells = |line: &str| std::array::from_fn(|i| line.split_whitespace().nth(i).unwrap().to_owned());
        text.lines().skip(1).map(cells).collect()
    }

    #[test]
    fn keys_are_printed_once_listed_rotated_and_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new");
        assert!(key(&dir, "list").unwrap_err().to_string().contains("holds no database"));
        assert!(!dir.exists());
        let first = key(&dir, "create --name ann --max-runs 2").unwrap();
        let secret = first.strip_prefix("tml-").and_then(|s| s.strip_suffix('\n')).unwrap();
        assert!(secret.len() == 64 && secret.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
        key(&dir, "create --name root --owner local --expires-in 60").unwrap();
        let list = key(&dir, "list").unwrap();
        assert!(!list.contains(secret) && list.contains("max-runs 2"), "{list}");
        let account = listed(&dir)[0][2].clone();
        assert_eq!(account.len(), 32);
        assert_eq!(listed(&dir)[1][..4], ["2", "root", "local", "until"].map(String::from));

        assert_ne!(key(&dir, "rotate ann --keep-old-for 60").unwrap(), first);
        assert_eq!(listed(&dir)[0][3], "until");
        assert_eq!(listed(&dir)[2][..], ["3", "ann", &account, "usable"].map(String::from));
        key(&dir, "revoke 2").unwrap();
        key(&dir, "revoke ann").unwrap();
        assert!(listed(&dir).iter().all(|k| k[3] == "revoked"));
        for gone in ["revoke ann", "revoke 2", "rotate ann"] {
            assert!(key(&dir, gone).is_err(), "{gone}");
        }
        key(&dir, "create --name ann").unwrap();
        assert!(key(&dir, "create --name ann").unwrap_err().to_string().contains("exists"));
    }

    #[test]
    fn every_command_names_its_database_and_scripts_get_the_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("tinderbox.db");
        let first = format!("database: {}\n", database.display());
        std::fs::write(&database, "").unwrap();
        let (out, err) = said(dir.path(), "list", &[]).unwrap();
        assert_eq!((out.lines().count(), err), (1, format!("{first}no keys in {}\n", database.display())));
        for line in ["create --name ann", "rotate ann", "list", "revoke ann"] {
            let (out, err) = said(dir.path(), line, &[]).unwrap();
            assert!(err.starts_with(&first) && !out.contains("database"), "{line}: {err}");
            assert!(!err.contains("no keys"), "{line}: {err}");
        }
        let other = format!("sqlite:{}?mode=rwc", dir.path().join("other.db").display());
        let (out, err) = said(dir.path(), "create --name bob", &[("DATABASE_URL", &other)]).unwrap();
        assert_eq!(err.lines().next(), Some(&*format!("database: {}", other.trim_end_matches("?mode=rwc"))));
        assert_eq!((out.lines().count(), out.len()), (1, 69), "{out}");
    }

    #[test]
    fn what_is_done_to_keys_is_in_the_audit_log() {
        let dir = tempfile::tempdir().unwrap();
        for line in ["create --name ann --owner a", "rotate ann", "revoke ann"] {
            key(dir.path(), line).unwrap();
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (from, to) = (Utc::now() - TimeDelta::hours(1), Utc::now() + TimeDelta::hours(1));
        let rows = runtime.block_on(async {
            let store = Store::open(&Place::in_dir(dir.path()).url).await.unwrap();
            store.audit(&OwnerId("a".into()), "key_", from, to, 10).await.unwrap()
        });
        let events: Vec<_> = rows.iter().map(|row| (&*row.event, row.details["key_id"].as_i64().unwrap())).collect();
        assert_eq!(events, [("key_created", 1), ("key_rotated", 2), ("key_revoked", 2)]);
    }
}
