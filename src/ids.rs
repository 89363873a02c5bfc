//! Identifiers as the protocol's chapter 5 forms them, and the `tinker://` path.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Whose a row is: the id of an API key's account. `"local"` when the server runs without keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OwnerId(pub String);

/// A session, a UUID.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub String);

/// A training run: `<session>:train:<model_seq_id>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelId(pub String);

/// A sampler: `<session>:sample:<sampling_session_seq_id>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SamplerId(pub String);

/// A promise; opaque and unguessable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub String);

/// A custom loss; opaque and unguessable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LossId(pub String);

macro_rules! display {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
    )*};
}
display!(OwnerId, SessionId, ModelId, SamplerId, RequestId, LossId);

impl SessionId {
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    pub fn model(&self, seq: u64) -> ModelId {
        ModelId(format!("{}:train:{seq}", self.0))
    }

    pub fn sampler(&self, seq: u64) -> SamplerId {
        SamplerId(format!("{}:sample:{seq}", self.0))
    }
}

impl ModelId {
    /// The name of its directories.
    pub fn dir_name(&self) -> String {
        self.0.replace(':', "-")
    }

    /// The run that has directories of this name.
    pub fn from_dir_name(name: &str) -> Option<Self> {
        let (session, seq) = name.rsplit_once("-train-")?;
        Some(SessionId(session.into()).model(seq.parse().ok()?))
    }
}

impl SamplerId {
    /// The name of its directory.
    pub fn dir_name(&self) -> String {
        self.0.replace(':', "-")
    }
}

impl LossId {
    pub fn random() -> Self {
        Self(format!("loss-{}", uuid::Uuid::new_v4()))
    }
}

impl RequestId {
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }
}

/// What a checkpoint is for; also the middle part of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CheckpointKind {
    /// Weights and optimiser state: training can be resumed from it.
    Training,
    /// Weights to sample from.
    Sampler,
    /// An export for download.
    External,
}

impl CheckpointKind {
    /// The path part: `weights`, `sampler_weights`, `external_weights`.
    pub fn segment(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
            Self::External => "external_weights",
        }
    }

    pub fn from_segment(s: &str) -> Option<Self> {
        match s {
            "weights" => Some(Self::Training),
            "sampler_weights" => Some(Self::Sampler),
            "external_weights" => Some(Self::External),
            _ => None,
        }
    }
}

/// `tinker://<run>/<kind>/<name>` (protocol §5.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CheckpointPath {
    pub run: ModelId,
    pub kind: CheckpointKind,
    pub name: String,
}

impl fmt::Display for CheckpointPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tinker://{}/{}/{}", self.run, self.kind.segment(), self.name)
    }
}

impl FromStr for CheckpointPath {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let bad = || {
            Error::user(format!(
                "path {s:?} is not of the form tinker://RUN/KIND/NAME with KIND one of weights, sampler_weights, external_weights"
            ))
        };
        let rest = s.strip_prefix("tinker://").ok_or_else(bad)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [run, kind, name] = parts[..] else { return Err(bad()) };
        let run = ModelId(run.into());
        // It becomes the name of a directory. Which runs there are is for others to say.
        check_name(&run.dir_name()).map_err(|_| bad())?;
        let kind = CheckpointKind::from_segment(kind).ok_or_else(bad)?;
        check_name(name)?;
        Ok(Self { run, kind, name: name.into() })
    }
}

/// A checkpoint name: 1 to 255 of `A–Z a–z 0–9 . _ -`, and neither `.` nor `..`.
pub fn check_name(name: &str) -> Result<(), Error> {
    let ok = (1..=255).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && name != "."
        && name != "..";
    if ok {
        return Ok(());
    }
    Err(Error::user(format!("checkpoint name {name:?}: 1 to 255 characters from A-Z a-z 0-9 . _ - are allowed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_a_round_trip() {
        let p: CheckpointPath = "tinker://s:train:0/weights/step_1".parse().unwrap();
        assert_eq!(p.kind, CheckpointKind::Training);
        assert_eq!(p.to_string(), "tinker://s:train:0/weights/step_1");
    }

    #[test]
    fn malformed_paths_are_user_errors() {
        for s in [
            "",
            "tinker://",
            "http://x/weights/a",
            "tinker://r/wheels/a",
            "tinker://r/a",
            "tinker://r/weights/..",
            "tinker://r/weights/a/b",
            "tinker:///weights/a",
            "tinker://../weights/a",
            "tinker://r\0/weights/a",
        ] {
            assert!(s.parse::<CheckpointPath>().is_err(), "{s}");
        }
    }
}
