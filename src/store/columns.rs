//! How our types stand in TEXT and BIGINT columns.

use std::path::Path;

use chrono::{DateTime, Utc};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::any::{Any, AnyArguments, AnyRow};
use sqlx::{Decode, Row, Type};

use crate::command::{LoraConfig, RunKind};
use crate::error::{Error, Result};

pub type Query<'q> = sqlx::query::Query<'q, Any, AnyArguments<'q>>;

/// The columns `bind_kind` fills and `kind` reads, in this order.
pub const KIND: &str = "is_lora, lora_rank, lora_seed, train_attn, train_mlp, train_unembed";

/// Microseconds since 1970: they sort and compare alike in both databases.
pub fn micros(time: DateTime<Utc>) -> i64 {
    time.timestamp_micros()
}

pub fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("strings, lists and maps of strings always have a JSON form")
}

/// A path of our own making, as a column holds it.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::server(format!("{} is not UTF-8", path.display())))
}

/// A count or size; beyond i64 it saturates.
pub fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub fn bind_kind<'q>(query: Query<'q>, kind: &RunKind) -> Query<'q> {
    let lora = match kind {
        RunKind::Lora(lora) => Some(lora),
        RunKind::Full => None,
    };
    query
        .bind(i64::from(lora.is_some()))
        .bind(lora.map(|l| int(l.rank as u64)))
        .bind(lora.map(|l| l.seed.cast_signed()))
        .bind(lora.map(|l| i64::from(l.train_attn)))
        .bind(lora.map(|l| i64::from(l.train_mlp)))
        .bind(lora.map(|l| i64::from(l.train_unembed)))
}

/// Reads typed columns of a row. A wrong type or content is a server error: only this module writes them.
pub trait Columns {
    fn column<'r, T: Decode<'r, Any> + Type<Any>>(&'r self, name: &str) -> Result<T>;

    fn text(&self, name: &str) -> Result<String> {
        self.column(name)
    }

    fn number(&self, name: &str) -> Result<u64> {
        Ok(self.column::<i64>(name)?.cast_unsigned())
    }

    fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.column::<i64>(name)? != 0)
    }

    fn time(&self, name: &str) -> Result<DateTime<Utc>> {
        self.optional_time(name)?.ok_or_else(|| corrupt(name))
    }

    fn optional_time(&self, name: &str) -> Result<Option<DateTime<Utc>>> {
        let Some(micros) = self.column::<Option<i64>>(name)? else { return Ok(None) };
        DateTime::from_timestamp_micros(micros).map(Some).ok_or_else(|| corrupt(name))
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        serde_json::from_str(&self.text(name)?).map_err(|_| corrupt(name))
    }

    fn optional_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.column::<Option<String>>(name)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|_| corrupt(name))
    }

    fn kind(&self) -> Result<RunKind> {
        if !self.flag("is_lora")? {
            return Ok(RunKind::Full);
        }
        Ok(RunKind::Lora(LoraConfig {
            rank: self.number("lora_rank")? as usize,
            seed: self.number("lora_seed")?,
            train_attn: self.flag("train_attn")?,
            train_mlp: self.flag("train_mlp")?,
            train_unembed: self.flag("train_unembed")?,
        }))
    }
}

impl Columns for AnyRow {
    fn column<'r, T: Decode<'r, Any> + Type<Any>>(&'r self, name: &str) -> Result<T> {
        Ok(self.try_get(name)?)
    }
}

pub fn corrupt(column: &str) -> Error {
    Error::server(format!("database: column {column} holds what was never written there"))
}
