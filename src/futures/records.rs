//! The ledger's records, as they lie in the journal.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::error::{Error, Result};
use crate::ids::{ModelId, OwnerId, RequestId};

use super::complete::Completion;
use super::issue::Key;
use super::state::Answer;

/// One record. Its fields are named in the files, so that a later version can add some.
#[derive(Serialize, Deserialize)]
pub(super) enum Record {
    Accepted(Box<Accepted>),
    Answered(Box<Answered>),
    /// This number of this run was refused at the door.
    Refused {
        model: ModelId,
        seq: u64,
    },
    /// The run went on without the numbers from `from` up to `next`.
    GaveUp {
        model: ModelId,
        from: u64,
        next: u64,
    },
    /// The run is gone: nothing of it before this record counts.
    Ended {
        model: ModelId,
    },
}

/// A request for which a promise was given.
#[derive(Serialize, Deserialize)]
pub struct Accepted {
    pub id: RequestId,
    pub owner: OwnerId,
    pub key: Key,
    pub meaning: u64,
    pub command: Command,
    pub completion: Completion,
}

/// How a promise ended.
#[derive(Serialize, Deserialize)]
pub struct Answered {
    pub id: RequestId,
    pub owner: OwnerId,
    /// The endpoint.
    pub kind: String,
    pub key: Key,
    pub meaning: u64,
    pub began: DateTime<Utc>,
    pub ended: DateTime<Utc>,
    pub result: Result<Answer>,
}

/// As [`Record`], of what is not to be copied for it.
#[derive(Serialize)]
pub(super) enum Written<'a> {
    Accepted {
        id: &'a RequestId,
        owner: &'a OwnerId,
        key: &'a Key,
        meaning: u64,
        command: &'a Command,
        completion: &'a Completion,
    },
    Answered {
        id: &'a RequestId,
        owner: &'a OwnerId,
        kind: &'a str,
        key: &'a Key,
        meaning: u64,
        began: DateTime<Utc>,
        ended: DateTime<Utc>,
        result: &'a Result<Answer>,
    },
}

/// A record's bytes.
pub(super) fn encoded(record: &impl Serialize) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(record).map_err(|e| Error::server(format!("a record of the journal: {e}")))
}
