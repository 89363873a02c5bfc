//! What a power cut may cost.

use std::str::FromStr;

use crate::error::{Error, Result};

/// A killed process loses nothing either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power cut costs the last 200 ms at most.
    #[default]
    Grouped,
    /// It costs nothing: a request is on the disk before it is promised.
    Strict,
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "grouped" => Ok(Self::Grouped),
            "strict" => Ok(Self::Strict),
            _ => Err(Error::user(format!("{s:?} is neither grouped nor strict"))),
        }
    }
}
