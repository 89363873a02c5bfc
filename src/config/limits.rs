//! What one request, one pass and the whole server may take. Each has a variable; the defaults suit one machine.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::env::Env;
use crate::error::{Error, Result};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A JSON body, in bytes.
    pub json_body_bytes: usize,
    /// A protobuf body, in bytes, both as sent and unpacked.
    pub proto_body_bytes: usize,
    /// Datums of one `forward_backward` request.
    pub max_datums: usize,
    pub max_rank: usize,
    /// Bytes of one owner's uploads that are not finished.
    pub upload_bytes: u64,
    pub max_num_samples: usize,
    /// Results kept for fetching, all together.
    pub result_bytes: usize,
    pub result_retention: Duration,
    /// Bytes of requests that are not finished, all together; an owner may hold half of them.
    pub pending_bytes: usize,
    /// Requests of one owner that are not finished.
    pub pending_requests: usize,
    /// A session that shows no sign of life for so long: what waits of it is cancelled, its runs leave memory until it does.
    pub session_silence: Duration,
    /// And for so long: it is taken for abandoned, and ends.
    pub session_timeout: Duration,
    /// How long a token from `auth/token` is good for. Clients take a new one at half of it.
    pub token_lifetime: Duration,
    /// How long events stay in the audit log.
    pub audit_retention: Duration,
    /// Events of one account in the audit log; beyond it the oldest go.
    pub audit_rows: usize,
    /// How long `retrieve_future` waits for a result. Clients hang up after 45 s (protocol §10.2).
    pub long_poll: Duration,
    /// Whether clients poll for all samples of a sampler at once instead of one by one. A restart of the server is then
    /// not noticed by samples that were under way.
    pub bulk_polling: bool,
    /// Work on a run between two states of it on disk, at least; the more a state costs, the longer.
    pub run_snapshot: Duration,
    /// Tokens of one training pass.
    pub pass_tokens: usize,
    /// Sequences that decode together.
    pub decode_sequences: usize,
    /// Activations kept for the backward pass; beyond it they are computed again. Absent: a share of free memory.
    pub activation_bytes: Option<u64>,
    /// Keys and values of running sequences. Absent: a share of free memory.
    pub kv_cache_bytes: Option<u64>,
    /// Sampler snapshots and checkpoints held in memory; beyond it they are read from disk when asked for.
    pub snapshot_bytes: u64,
    /// And how many bytes of unnamed samplers' weights may lie on disk; beyond it those used longest ago go.
    pub snapshot_disk_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self::from_env(&Env::empty()).expect("every default lies in its own range")
    }
}

impl Limits {
    /// Errors are the user's and name variable, value and range.
    pub fn from_env(env: &Env) -> Result<Self> {
        let size = |name, default| bytes(env, name, default);
        Ok(Self {
            json_body_bytes: size("TINDERBOX_MAX_JSON_BODY", 64 * MIB)? as usize,
            proto_body_bytes: size("TINDERBOX_MAX_PROTO_BODY", 256 * MIB)? as usize,
            max_datums: count(env, "TINDERBOX_MAX_DATUMS", 65_536, 1..=1 << 24)?,
            max_rank: count(env, "TINDERBOX_MAX_RANK", 4096, 1..=1 << 20)?,
            upload_bytes: size("TINDERBOX_UPLOAD_BYTES", 8 * GIB)?,
            max_num_samples: count(env, "TINDERBOX_MAX_NUM_SAMPLES", 4096, 1..=1 << 20)?,
            result_bytes: size("TINDERBOX_RESULT_BYTES", GIB)? as usize,
            result_retention: seconds(env, "TINDERBOX_RESULT_RETENTION_SECONDS", 24 * 3600, 60..=31_536_000)?,
            pending_bytes: size("TINDERBOX_PENDING_BYTES", GIB)? as usize,
            pending_requests: count(env, "TINDERBOX_PENDING_REQUESTS", 20_000, 1..=1 << 24)?,
            session_silence: seconds(env, "TINDERBOX_SESSION_SILENCE", 600, 5..=31_536_000)?,
            session_timeout: seconds(env, "TINDERBOX_SESSION_TIMEOUT", 24 * 3600, 60..=31_536_000)?,
            token_lifetime: seconds(env, "TINDERBOX_TOKEN_SECONDS", 3600, 1..=86_400)?,
            audit_retention: days(env, "TINDERBOX_AUDIT_DAYS", 90, 1..=3650)?,
            audit_rows: count(env, "TINDERBOX_AUDIT_ROWS", 100_000, 1..=1 << 24)?,
            long_poll: seconds(env, "TINDERBOX_LONG_POLL_SECONDS", 30, 1..=35)?,
            bulk_polling: env.parse("TINDERBOX_BULK_POLLING")?.unwrap_or(false),
            run_snapshot: fraction(env, "TINDERBOX_RUN_SNAPSHOT_SECONDS", 3.0, 0.0..=86_400.0)?,
            pass_tokens: count(env, "TINDERBOX_PASS_TOKENS", 2048, 64..=1 << 24)?,
            decode_sequences: count(env, "TINDERBOX_DECODE_SEQUENCES", 64, 1..=65_536)?,
            activation_bytes: optional_bytes(env, "TINDERBOX_ACTIVATION_BYTES")?,
            kv_cache_bytes: optional_bytes(env, "TINDERBOX_KV_CACHE_BYTES")?,
            snapshot_bytes: size("TINDERBOX_SNAPSHOT_BYTES", GIB)?,
            snapshot_disk_bytes: size("TINDERBOX_SNAPSHOT_DISK_BYTES", 64 * GIB)?,
        })
    }
}

fn count(env: &Env, name: &'static str, default: usize, range: RangeInclusive<usize>) -> Result<usize> {
    ranged(name, whole(env, name, "", &range)?.unwrap_or(default), range)
}

fn seconds(env: &Env, name: &'static str, default: u64, range: RangeInclusive<u64>) -> Result<Duration> {
    ranged(name, whole(env, name, " of seconds", &range)?.unwrap_or(default), range).map(Duration::from_secs)
}

/// Seconds with a fraction.
fn fraction(env: &Env, name: &'static str, default: f64, range: RangeInclusive<f64>) -> Result<Duration> {
    let given = env.number(name, format_args!("a number of seconds from {} to {}", range.start(), range.end()))?;
    ranged(name, given.unwrap_or(default), range).map(Duration::from_secs_f64)
}

fn days(env: &Env, name: &'static str, default: u64, range: RangeInclusive<u64>) -> Result<Duration> {
    let days = ranged(name, whole(env, name, " of days", &range)?.unwrap_or(default), range)?;
    Ok(Duration::from_secs(days * 24 * 3600))
}

fn bytes(env: &Env, name: &'static str, default: u64) -> Result<u64> {
    Ok(optional_bytes(env, name)?.unwrap_or(default))
}

/// A whole number `of` something, as " of seconds".
pub(super) fn whole<T>(env: &Env, name: &'static str, of: &str, range: &RangeInclusive<T>) -> Result<Option<T>>
where
    T: FromStr + std::fmt::Display,
{
    env.number(name, format_args!("a whole number{of} from {} to {}", range.start(), range.end()))
}

/// At least 1 MiB: a limit below it would refuse ordinary requests.
pub(super) fn optional_bytes(env: &Env, name: &'static str) -> Result<Option<u64>> {
    env.parse::<Bytes>(name)?.map(|b| ranged(name, b.0, MIB..=1 << 50)).transpose()
}

pub(super) fn ranged<T: PartialOrd + std::fmt::Display>(name: &str, value: T, range: RangeInclusive<T>) -> Result<T> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(Error::user(format!("{name}={value}: must lie between {} and {}", range.start(), range.end())))
}

/// `123`, `64MiB` or `2GiB`.
struct Bytes(u64);

impl FromStr for Bytes {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let (digits, unit) = [("KiB", 1 << 10), ("MiB", MIB), ("GiB", GIB)]
            .into_iter()
            .find_map(|(suffix, unit)| Some((s.strip_suffix(suffix)?.trim_end(), unit)))
            .unwrap_or((s, 1));
        let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
        number.map(Self).ok_or_else(|| Error::user("not a number of bytes; give it as 1048576, 64MiB or 2GiB"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(name: &str, value: &str) -> Result<Limits> {
        Limits::from_env(&Env::for_testing(&[(name, value)]))
    }

    #[test]
    fn variables_change_one_limit_each() {
        let default = Limits::default();
        assert_eq!(limits("TINDERBOX_MAX_RANK", "8").unwrap(), Limits { max_rank: 8, ..default.clone() });
        assert_eq!(
            limits("TINDERBOX_LONG_POLL_SECONDS", "5").unwrap(),
            Limits { long_poll: Duration::from_secs(5), ..default.clone() }
        );
        for (value, bytes) in [("2097152", 2 * MIB), ("3MiB", 3 * MIB), ("5 GiB", 5 * GIB), ("2048KiB", 2 * MIB)] {
            assert_eq!(
                limits("TINDERBOX_KV_CACHE_BYTES", value).unwrap(),
                Limits { kv_cache_bytes: Some(bytes), ..default.clone() }
            );
        }
    }

    #[test]
    fn what_is_no_number_is_told_what_is_wanted() {
        for (name, value, wanted) in [
            ("TINDERBOX_PASS_TOKENS", "many", "a whole number from 64 to 16777216"),
            ("TINDERBOX_SESSION_TIMEOUT", "1d", "a whole number of seconds from 60 to 31536000"),
            ("TINDERBOX_AUDIT_DAYS", "-1", "a whole number of days from 1 to 3650"),
        ] {
            assert_eq!(limits(name, value).unwrap_err().message, format!("{name}={value:?}: give {wanted}"));
        }
    }

    #[test]
    fn values_out_of_range_name_the_range() {
        assert_eq!(
            limits("TINDERBOX_LONG_POLL_SECONDS", "45").unwrap_err().message,
            "TINDERBOX_LONG_POLL_SECONDS=45: must lie between 1 and 35"
        );
        for (name, value) in [
            ("TINDERBOX_MAX_RANK", "0"),
            ("TINDERBOX_MAX_RANK", "-1"),
            ("TINDERBOX_MAX_JSON_BODY", "10KiB"),
            ("TINDERBOX_MAX_JSON_BODY", "64MB"),
            ("TINDERBOX_MAX_JSON_BODY", "99999999999GiB"),
        ] {
            assert!(limits(name, value).unwrap_err().message.contains(name), "{name}={value}");
        }
    }
}
