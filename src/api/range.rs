//! Which bytes of a file a request wants (RFC 9110 §14).

use std::ops::Range;

#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    Part(Range<u64>),
    /// No byte of it exists.
    Nothing,
}

/// Of a `Range` header. What is malformed, or asks for several parts, is answered with the whole file.
pub fn wanted(header: Option<&str>, size: u64) -> Wanted {
    let part = header.and_then(|h| h.strip_prefix("bytes=")).and_then(|part| part.split_once('-'));
    let Some((first, last)) = part else { return Wanted::All };
    let number = |text: &str| {
        // Digits alone: `parse` would take a sign. No file is so long that a number too large for it could matter.
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), None) if last.is_empty() => part_of(first, size, size),
        (Some(first), Some(last)) if first <= last => part_of(first, last.saturating_add(1), size),
        (None, Some(suffix)) if first.is_empty() => part_of(size - suffix.min(size), size, size),
        _ => Wanted::All,
    }
}

fn part_of(first: u64, end: u64, size: u64) -> Wanted {
    if first >= size { Wanted::Nothing } else { Wanted::Part(first..end.min(size)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_from_the_start_the_middle_or_the_end() {
        let of = |header: &str| wanted(Some(header), 10);
        assert_eq!(wanted(None, 10), Wanted::All);
        assert_eq!(of("bytes=0-3"), Wanted::Part(0..4));
        assert_eq!(of("bytes=9-9"), Wanted::Part(9..10));
        assert_eq!(of("bytes=4-"), Wanted::Part(4..10));
        assert_eq!(of("bytes=4-99"), Wanted::Part(4..10));
        assert_eq!(of("bytes=0-18446744073709551615"), Wanted::Part(0..10));
        assert_eq!(of("bytes=-3"), Wanted::Part(7..10));
        assert_eq!(of("bytes=-99"), Wanted::Part(0..10));
        let digits = "99999999999999999999";
        assert_eq!(of(&format!("bytes=4-{digits}")), Wanted::Part(4..10));
        assert_eq!(of(&format!("bytes=-{digits}")), Wanted::Part(0..10));
        let huge = format!("bytes={digits}-");
        for beyond in ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=18446744073709551615-", &huge] {
            assert_eq!(of(beyond), Wanted::Nothing, "{beyond}");
        }
        assert_eq!(wanted(Some("bytes=0-"), 0), Wanted::Nothing);
        for odd in ["", "bytes=", "bytes=-", "bytes=3-1", "bytes=0-1,4-5", "bytes=+1-2", "items=0-1", "bytes=a-b"] {
            assert_eq!(of(odd), Wanted::All, "{odd}");
        }
    }
}
