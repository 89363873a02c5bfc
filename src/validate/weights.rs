//! Names, lifetimes, recipients and paths of checkpoints.

use chrono::TimeDelta;

use crate::error::{Error, Result};
use crate::ids::{CheckpointKind, CheckpointPath, ModelId, check_name};

/// One hour to ten years (protocol §13.2).
const TTL_SECONDS: std::ops::RangeInclusive<i64> = 3600..=315_360_000;

const MAX_RECIPIENTS: usize = 10;

/// The path of a new checkpoint. Without a name it is the request's number, zero-padded.
pub fn new_path(run: &ModelId, kind: CheckpointKind, name: Option<&str>, seq: u64) -> Result<CheckpointPath> {
    let name = name.map_or_else(|| format!("{seq:06}"), str::to_owned);
    check_name(&name)?;
    Ok(CheckpointPath { run: run.clone(), kind, name })
}

/// `None` = never expires.
pub fn ttl(seconds: Option<i64>) -> Result<Option<TimeDelta>> {
    match seconds {
        Some(s) if !TTL_SECONDS.contains(&s) => Err(Error::user(format!(
            "ttl_seconds {s} is out of range: {} (one hour) to {} (ten years)",
            TTL_SECONDS.start(),
            TTL_SECONDS.end()
        ))),
        s => Ok(s.map(TimeDelta::seconds)),
    }
}

/// Public keys to encrypt an export for: at most 10, of the two kinds age knows.
pub fn recipients(keys: Option<Vec<String>>) -> Result<Vec<String>> {
    let keys = keys.unwrap_or_default();
    if keys.len() > MAX_RECIPIENTS {
        return Err(Error::user(format!(
            "{} age_encryption_recipients; at most {MAX_RECIPIENTS} are allowed",
            keys.len()
        )));
    }
    match keys.iter().position(|k| !k.starts_with("age1") && !k.starts_with("ssh-")) {
        Some(i) => {
            Err(Error::user(format!("age_encryption_recipients[{i}] is neither an age1… nor an ssh-… public key")))
        }
        None => Ok(keys),
    }
}

/// A path to train from: a training checkpoint's.
pub fn training_path(path: &str) -> Result<CheckpointPath> {
    let path: CheckpointPath = path.parse()?;
    match path.kind {
        CheckpointKind::Training => Ok(path),
        other => Err(Error::user(format!(
            "{path} holds {} only: a run starts from tinker://RUN/weights/NAME, as save_state makes it",
            other.segment()
        ))),
    }
}

/// A path to sample from: a sampler's or a training checkpoint's.
pub fn sampling_path(path: &str) -> Result<CheckpointPath> {
    let path: CheckpointPath = path.parse()?;
    match path.kind {
        CheckpointKind::External => Err(Error::user(format!(
            "{path} is an export for download: sample from tinker://RUN/sampler_weights/NAME, as \
             save_weights_for_sampler makes it"
        ))),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes() {
        assert_eq!(ttl(None).unwrap(), None);
        assert_eq!(ttl(Some(3600)).unwrap(), Some(TimeDelta::hours(1)));
        assert!(ttl(Some(315_360_000)).is_ok());
        for bad in [0, -5, 60, 3599, 315_360_001, 1_000_000_000_000] {
            let e = ttl(Some(bad)).unwrap_err().message;
            assert!(e.contains(&bad.to_string()) && e.contains("3600"), "{e}");
        }
    }

    #[test]
    fn names() {
        let run = ModelId("s:train:0".into());
        let path = |name| new_path(&run, CheckpointKind::Training, name, 7);
        assert_eq!(path(Some("a.b_c-1")).unwrap().to_string(), "tinker://s:train:0/weights/a.b_c-1");
        assert_eq!(path(None).unwrap().name, "000007");
        for bad in ["", "..", "a/b", "/etc/passwd", "a\0b"] {
            assert!(path(Some(bad)).is_err(), "{bad:?}");
        }
        assert!(path(Some(&"x".repeat(256))).is_err());
    }

    #[test]
    fn what_may_be_loaded_and_sampled() {
        let p = |kind: &str| format!("tinker://s:train:0/{kind}/a");
        assert!(training_path(&p("weights")).is_ok());
        assert!(training_path(&p("sampler_weights")).unwrap_err().message.contains("weights/NAME"));
        assert!(training_path(&p("external_weights")).is_err());
        assert!(sampling_path(&p("weights")).is_ok());
        assert!(sampling_path(&p("sampler_weights")).is_ok());
        assert!(sampling_path(&p("external_weights")).unwrap_err().message.contains("sampler_weights/NAME"));
        assert!(sampling_path("tinker://").is_err());
    }

    #[test]
    fn recipients_are_counted_and_recognised() {
        assert_eq!(recipients(None).unwrap(), Vec::<String>::new());
        assert!(recipients(Some(vec!["age1abc".into(), "ssh-ed25519 AAAA".into()])).is_ok());
        assert!(recipients(Some(vec!["age1abc".into(), "x".into()])).unwrap_err().message.contains("[1]"));
        assert!(recipients(Some(vec!["age1abc".into(); 11])).unwrap_err().message.contains("11"));
    }
}
