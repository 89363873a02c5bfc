//! zstd bodies, unpacked block by block so that a small one cannot become a large one unseen.

use std::io::Read;

use bytes::{Bytes, BytesMut};

use crate::error::Error;
use crate::futures::admission::Full;

use super::error::ApiError;

/// Unpacked at a time.
const BLOCK: usize = 256 << 10;

/// How far back a frame may refer, as a power of two, in bytes: what RFC 9659 allows in HTTP. So much memory is taken
/// before anything is unpacked.
const WINDOW_LOG_MAX: u32 = 23;

/// At most `limit` bytes; `admit` is asked for each block. An error comes with what was unpacked until then, but with
/// nothing when there was no room: the same body will be sent again.
pub fn unzstd(
    raw: &[u8],
    limit: usize,
    mut admit: impl FnMut(usize) -> Result<(), Full>,
) -> Result<Bytes, (ApiError, Bytes)> {
    let bad = |e: std::io::Error| ApiError::from(Error::user(format!("the zstd body cannot be decompressed: {e}")));
    // Most frames say how large they unpack; the limit holds also for those that do not, or lie.
    let declared = zstd::zstd_safe::get_frame_content_size(raw).ok().flatten();
    let too_large = declared.is_some_and(|n| n > limit as u64);
    let mut out = BytesMut::new();
    let decoder = zstd::stream::read::Decoder::with_buffer(raw).and_then(|mut decoder| {
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Ok(decoder)
    });
    let mut decoder = decoder.map_err(|e| (bad(e), Bytes::new()))?;
    let mut block = vec![0; BLOCK];
    loop {
        let n = match decoder.read(&mut block) {
            Ok(0) => return Ok(out.freeze()),
            Ok(n) => n,
            Err(e) => return Err((bad(e), out.freeze())),
        };
        if too_large || out.len() + n > limit {
            out.extend_from_slice(&block[..n]);
            let size = match declared {
                Some(n) if too_large => n.to_string(),
                _ => format!("at least {}", out.len()),
            };
            return Err((ApiError::too_large("the decompressed request body", size, limit), out.freeze()));
        }
        admit(n).map_err(|full| (full.into(), Bytes::new()))?;
        out.extend_from_slice(&block[..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack(raw: &[u8], limit: usize) -> Result<Bytes, (ApiError, Bytes)> {
        unzstd(raw, limit, |_| Ok(()))
    }

    #[test]
    fn a_bomb_is_cut_off() {
        let bomb = zstd::encode_all(&vec![0u8; 1 << 20][..], 3).unwrap();
        assert!(bomb.len() < 1000);
        let declared = zstd::bulk::compress(&vec![0u8; 1 << 20], 3).unwrap();
        for (body, size) in [(&bomb, "at least 262144"), (&declared, "1048576")] {
            let refused = unpack(body, 1 << 16).unwrap_err().0;
            let told = format!("the decompressed request body has {size} bytes; the limit is 65536 bytes");
            assert_eq!(refused.detail(), told);
        }
        assert_eq!(unpack(&bomb, 1 << 20).unwrap().len(), 1 << 20);
        let mut room = 3 * BLOCK / 2;
        let refused = unzstd(&bomb, 1 << 20, |n| {
            room = room.checked_sub(n).ok_or(Full::of_work("no room"))?;
            Ok(())
        });
        assert!(refused.unwrap_err().1.is_empty());
    }

    #[test]
    fn a_frame_cannot_ask_for_a_large_window() {
        // A frame of five bytes that says it refers back up to so far.
        let frame = |log: u8| [&[0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 0x29, 0, 0][..], b"hello"].concat();
        assert_eq!(unpack(&frame(23), 100).unwrap(), &b"hello"[..]);
        let refused = unpack(&frame(24), 100).unwrap_err();
        assert!(refused.0.detail().contains("too much memory") && refused.1.is_empty(), "{}", refused.0.detail());
    }

    #[test]
    fn what_came_out_before_a_fault_is_kept() {
        let text = b"{\"model_id\":\"m\",\"seq_id\":4,".repeat(20_000);
        let whole = zstd::encode_all(&text[..], 3).unwrap();
        let (_, seen) = unpack(&whole[..whole.len() - 10], text.len()).unwrap_err();
        assert!(seen.starts_with(b"{\"model_id\":\"m\",\"seq_id\":4"));
        let (_, seen) = unpack(&whole, 100).unwrap_err();
        assert!(seen.starts_with(b"{\"model_id\":\"m\",\"seq_id\":4"));
        assert!(unpack(b"not zstd", 100).unwrap_err().1.is_empty());
    }
}
