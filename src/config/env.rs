//! The environment variables the server reads, gathered once; a misspelt `TINDERBOX_*` name is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

const PREFIX: &str = "TINDERBOX_";

/// Variables that stand for a flag.
const OF_FLAGS: [&str; 10] = [
    "TINDERBOX_MODEL",
    "TINDERBOX_HOST",
    "TINDERBOX_PORT",
    "TINDERBOX_DATA_DIR",
    "TINDERBOX_DATABASE_URL",
    "TINDERBOX_DEVICE",
    "TINDERBOX_DTYPE",
    "TINDERBOX_API_KEY",
    "TINDERBOX_PUBLIC_URL",
    "TINDERBOX_DURABILITY",
];

/// Variables of what has no flag. A name in neither list would be a setting that silently does nothing.
const ALONE: [&str; 28] = [
    "TINDERBOX_BULK_POLLING",
    "TINDERBOX_TOKEN_SECONDS",
    "TINDERBOX_AUDIT_DAYS",
    "TINDERBOX_AUDIT_ROWS",
    "TINDERBOX_MAX_JSON_BODY",
    "TINDERBOX_MAX_PROTO_BODY",
    "TINDERBOX_MAX_DATUMS",
    "TINDERBOX_MAX_RANK",
    "TINDERBOX_UPLOAD_BYTES",
    "TINDERBOX_MAX_NUM_SAMPLES",
    "TINDERBOX_RESULT_BYTES",
    "TINDERBOX_RESULT_RETENTION_SECONDS",
    "TINDERBOX_PENDING_BYTES",
    "TINDERBOX_PENDING_REQUESTS",
    "TINDERBOX_SESSION_SILENCE",
    "TINDERBOX_SESSION_TIMEOUT",
    "TINDERBOX_LONG_POLL_SECONDS",
    "TINDERBOX_PASS_TOKENS",
    "TINDERBOX_DECODE_SEQUENCES",
    "TINDERBOX_ACTIVATION_BYTES",
    "TINDERBOX_KV_CACHE_BYTES",
    "TINDERBOX_SNAPSHOT_BYTES",
    "TINDERBOX_SNAPSHOT_DISK_BYTES",
    "TINDERBOX_RUN_SNAPSHOT_SECONDS",
    "TINDERBOX_QUOTA_MAX_RUNS",
    "TINDERBOX_QUOTA_REQUESTS_PER_MINUTE",
    "TINDERBOX_QUOTA_TOKENS_PER_MINUTE",
    "TINDERBOX_QUOTA_DISK_BYTES",
];

/// Variables of others that have a meaning here too.
const FOREIGN: [&str; 9] = [
    "TINKER_BASE_URL",
    "TINKER_API_KEY",
    "DATABASE_URL",
    "HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
];

/// A snapshot of the variables above; an empty value counts as unset.
#[derive(Clone)]
pub struct Env(BTreeMap<String, String>);

/// The end of `tinderbox serve --help`: the settings that are no flags.
pub fn help() -> String {
    format!(
        "Limits, quotas and times have no flags, but variables of the environment; a wrong value is refused with what is \
         accepted:\n  {}\nThe hub's cache and use are as HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE say.",
        ALONE.join("\n  ")
    )
}

impl Env {
    /// Reads the process's environment. An unknown `TINDERBOX_*` name is a user error that suggests the nearest one.
    pub fn from_process() -> Result<Self> {
        let mut read = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if !name.starts_with(PREFIX) && !FOREIGN.contains(&name.as_str()) {
                continue;
            }
            let value = value.into_string().map_err(|_| Error::user(format!("{name}: the value is not UTF-8")))?;
            read.insert(name, value);
        }
        Self::checked(read)
    }

    /// Nothing set: every value is its default.
    pub fn empty() -> Self {
        Self(BTreeMap::new())
    }

    pub fn for_testing(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    pub fn get(&self, name: &'static str) -> Option<&str> {
        debug_assert!(
            known().any(|known| known == name) || FOREIGN.contains(&name),
            "{name} is missing in the list above"
        );
        self.0.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// The parsed value, when set. Errors are the user's and name variable and value.
    pub fn parse<T: FromStr>(&self, name: &'static str) -> Result<Option<T>>
    where
        T::Err: fmt::Display,
    {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|e| Error::user(format!("{name}={text:?}: {e}")))
    }

    /// The number, when set. Errors say what is `wanted`, as "a whole number of seconds".
    pub fn number<T: FromStr>(&self, name: &'static str, wanted: impl fmt::Display) -> Result<Option<T>> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Error::user(format!("{name}={text:?}: give {wanted}")))
    }

    /// The parts of a comma separated value.
    pub fn list(&self, name: &'static str) -> Vec<String> {
        let parts = self.get(name).unwrap_or_default().split(',').map(str::trim);
        parts.filter(|p| !p.is_empty()).map(str::to_owned).collect()
    }

    /// The command line of this process, the program's name first.
    pub fn arguments() -> std::env::ArgsOs {
        std::env::args_os()
    }

    /// The file this process runs.
    pub fn executable() -> std::io::Result<std::path::PathBuf> {
        std::env::current_exe()
    }

    fn checked(read: BTreeMap<String, String>) -> Result<Self> {
        match read.keys().find(|n| n.starts_with(PREFIX) && !known().any(|known| known == *n)) {
            None => Ok(Self(read)),
            Some(name) => Err(Error::user(format!(
                "unknown environment variable {name}; did you mean {}? (all of them: {})",
                nearest(name),
                known().collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

/// Names only: values may be keys or hold passwords.
impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn known() -> impl Iterator<Item = &'static str> {
    OF_FLAGS.into_iter().chain(ALONE)
}

fn nearest(name: &str) -> &'static str {
    known().min_by_key(|known| edit_distance(name, known)).expect("the list is not empty")
}

/// Levenshtein's distance in bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substitute = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str) -> Result<Env> {
        Env::checked(BTreeMap::from([(name.to_owned(), "1".to_owned())]))
    }

    #[test]
    fn a_misspelt_variable_is_refused_with_the_nearest_name() {
        for (wrong, right) in [
            ("TINDERBOX_PROT", "TINDERBOX_PORT"),
            ("TINDERBOX_API_KEYS", "TINDERBOX_API_KEY"),
            ("TINDERBOX_MAX_LORA_RANK", "TINDERBOX_MAX_RANK"),
        ] {
            let message = checked(wrong).unwrap_err().message;
            assert!(
                message.starts_with(&format!("unknown environment variable {wrong}; did you mean {right}?")),
                "{message}"
            );
        }
        assert!(checked("TINDERBOX_PORT").is_ok());
        assert!(checked("HOME").is_ok());
    }

    #[test]
    fn distances() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
    }

    #[test]
    fn an_empty_value_counts_as_unset_and_a_wrong_one_is_named() {
        let env = Env::for_testing(&[("TINDERBOX_PORT", ""), ("TINDERBOX_MAX_RANK", "many")]);
        assert_eq!(env.parse::<u16>("TINDERBOX_PORT").unwrap(), None);
        let message = env.parse::<u16>("TINDERBOX_MAX_RANK").unwrap_err().message;
        assert!(message.starts_with("TINDERBOX_MAX_RANK=\"many\": "), "{message}");
        let message = env.number::<u16>("TINDERBOX_MAX_RANK", "a whole number").unwrap_err().message;
        assert_eq!(message, "TINDERBOX_MAX_RANK=\"many\": give a whole number");
    }

    #[test]
    fn the_help_names_every_variable_that_is_no_flag() {
        let text = help();
        assert!(ALONE.iter().all(|name| text.contains(&format!("\n  {name}\n"))), "{text}");
        assert!(!text.contains("TINDERBOX_PORT"), "{text}");
    }

    #[test]
    fn lists_are_comma_separated() {
        let env = Env::for_testing(&[("TINDERBOX_MODEL", "a=/x, /y ,,")]);
        assert_eq!(env.list("TINDERBOX_MODEL"), ["a=/x", "/y"]);
    }
}
