//! How a record lies in a segment: mark, length, number, checksum, bytes. A reader finds its way behind damage by the marks.

use std::ops::Range;

use super::RecordId;
use crate::error::{Error, Result};

const MARK: [u8; 4] = *b"TBr1";
/// Mark, length (u32), number (u64) and CRC-32 (u32) of number and payload, little-endian.
pub(super) const HEADER: usize = 20;

/// What lies in a segment, piece by piece.
pub(super) enum Scan {
    Record {
        id: RecordId,
        payload: Range<usize>,
    },
    /// A place with a whole record somewhere behind it.
    Damaged {
        at: usize,
        bytes: usize,
    },
    /// So many bytes at the end, behind which nothing can be read.
    Torn {
        bytes: usize,
    },
}

/// Bytes that a payload takes with its header.
pub(super) fn size(payload: usize) -> u64 {
    (HEADER + payload) as u64
}

pub(super) fn framed(id: RecordId, payload: &[u8]) -> Result<Vec<u8>> {
    let len = u32::try_from(payload.len())
        .map_err(|_| Error::user(format!("a request of {} bytes; the journal takes 4 GiB", payload.len())))?;
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&MARK);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&checksum(id, payload).to_le_bytes());
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

fn checksum(id: RecordId, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&id.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

pub(super) fn scan(bytes: &[u8]) -> Vec<Scan> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if let Some((id, payload)) = record(bytes, at) {
            at = payload.end;
            found.push(Scan::Record { id, payload });
            continue;
        }
        let next =
            (at + 1..bytes.len()).filter(|i| bytes[*i..].starts_with(&MARK)).find(|i| record(bytes, *i).is_some());
        match next {
            Some(next) => {
                found.push(Scan::Damaged { at, bytes: next - at });
                at = next;
            }
            None => {
                found.push(Scan::Torn { bytes: bytes.len() - at });
                break;
            }
        }
    }
    found
}

/// The whole record at this place.
fn record(bytes: &[u8], at: usize) -> Option<(RecordId, Range<usize>)> {
    let header = bytes.get(at..at + HEADER)?;
    if header[..4] != MARK {
        return None;
    }
    let len = u32::from_le_bytes(header[4..8].try_into().ok()?) as usize;
    let id = u64::from_le_bytes(header[8..16].try_into().ok()?);
    let crc = u32::from_le_bytes(header[16..20].try_into().ok()?);
    let payload = at + HEADER..at + HEADER + len;
    (checksum(id, bytes.get(payload.clone())?) == crc).then_some((id, payload))
}
