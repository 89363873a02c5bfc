//! What the fuzz targets of tests/fuzz reach of this folder; compiled for them alone.

use axum::http::Uri;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tinderbox_client::types::lenient::parse_object;
use tinderbox_client::types::training::ForwardBackwardRequest;

use crate::chat::conversation::Conversation;
use crate::command::{Datum, Loss};
use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};
use crate::ids::ModelId;

use super::anthropic::request::{MessagesRequest, PromptRequest};
use super::openai::chat_request::ChatRequest;
use super::openai::completions_request::CompletionRequest;
use super::range::Wanted;
use super::training::{self, Source};
use super::{numbers, query, range, unzstd};

/// A forward_backward request once it is checked.
pub type Checked = (Vec<Datum>, Loss, bool);

/// As a protobuf body is taken in: decoded, converted, checked against the model.
pub fn proto_body(bytes: &[u8], model: &ModelInfo, max_datums: usize) -> Result<Checked> {
    let message = training::decode(Bytes::copy_from_slice(bytes))?;
    training::check(training::read(Source::Proto(message))?, None, model, max_datums)
}

/// As a JSON body is.
pub fn json_body(request: ForwardBackwardRequest, model: &ModelInfo, max_datums: usize) -> Result<Checked> {
    training::check(training::read(Source::Json(request))?, None, model, max_datums)
}

/// How many messages a protobuf body is taken to hold before it is decoded.
pub fn messages_in(bytes: &[u8]) -> usize {
    numbers::messages_in(bytes)
}

pub fn number_of(bytes: &[u8]) -> Option<(ModelId, u64)> {
    numbers::find(bytes)
}

/// What was unpacked, and whether all of it was.
pub fn unpacked(raw: &[u8], limit: usize, mut admit: impl FnMut(usize)) -> (Bytes, bool) {
    let unpacked = unzstd::unzstd(raw, limit, |n| {
        admit(n);
        Ok(())
    });
    unpacked.map_or_else(|(_, seen)| (seen, false), |whole| (whole, true))
}

/// The bytes of a file of `size` that a `Range` header is answered with.
pub fn ranged(header: &str, size: u64) -> std::ops::Range<u64> {
    match range::wanted(Some(header), size) {
        Wanted::All => 0..size,
        Wanted::Part(part) => part,
        Wanted::Nothing => 0..0,
    }
}

/// A query string as it is read from a request's address.
pub fn query_of<T: DeserializeOwned>(query: &str) -> Option<T> {
    let uri: Uri = format!("/?{query}").parse().ok()?;
    axum::extract::Query::try_from_uri(&uri).ok().map(|q| q.0)
}

pub fn page(limit: i64, offset: i64) -> Result<(u64, u64)> {
    query::page(limit, offset)
}

/// The conversation of a chat completion, if its settings can be honoured too.
pub fn openai_chat(body: &[u8]) -> Result<Conversation> {
    let request: ChatRequest = parsed(body)?;
    request.sampling.settings(request.top_logprobs.unwrap_or(0))?;
    request.conversation("fuzzed")
}

/// How many prompts a text completion has.
pub fn openai_completion(body: &[u8]) -> Result<usize> {
    let request: CompletionRequest = parsed(body)?;
    request.settings()?;
    Ok(request.prompt.each().len())
}

pub fn anthropic_messages(body: &[u8]) -> Result<Conversation> {
    parsed::<MessagesRequest>(body)?.prompt.conversation("fuzzed")
}

pub fn anthropic_count(body: &[u8]) -> Result<Conversation> {
    parsed::<PromptRequest>(body)?.conversation("fuzzed")
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    parse_object(body).map_err(|e| Error::user(e.to_string()))
}
