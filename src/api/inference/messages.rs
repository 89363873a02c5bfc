//! Checks on messages and tools that both APIs share.

use minijinja::value::{Value, ValueKind};

use crate::error::{Error, Result};

/// A content part of a kind that text models have no use for.
pub fn not_text(place: &str, kind: &str, model: &str) -> Error {
    let what = match kind {
        "image_url" | "image" | "input_image" => "an image",
        "input_audio" | "audio" => "audio",
        "file" | "document" => "a file",
        other => return Error::user(format!("{place} is of type {other:?}; a message holds text here")),
    };
    Error::user(format!("{place} is {what}, but {model} takes text only"))
}

/// A JSON Schema object, or nothing.
pub fn check_schema(place: &str, schema: &Value) -> Result<()> {
    match schema.kind() {
        ValueKind::Map | ValueKind::Undefined | ValueKind::None => Ok(()),
        _ => Err(Error::user(format!("{place} must be a JSON Schema object"))),
    }
}

/// A tool's name: templates and parsers rely on it.
pub fn check_name(place: &str, name: Option<&str>) -> Result<()> {
    match name {
        Some(name) if !name.is_empty() && name.len() <= 256 => Ok(()),
        Some(name) => Err(Error::user(format!("{place} has {} bytes; a name has 1 to 256", name.len()))),
        None => Err(Error::user(format!("{place} is missing"))),
    }
}
