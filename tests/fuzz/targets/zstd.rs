//! zstd bodies: never more than the limit and one block comes out, all of it announced; what was packed comes out whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tinderbox::api::fuzzing::unpacked;

/// The most that is unpacked beyond the limit, to say how large a body is at least.
const BLOCK: usize = 256 << 10;

fuzz_target!(|input: (u32, i32, &[u8])| {
    let (limit, level, bytes) = input;
    let limit = limit as usize % (4 << 20);
    unpack(bytes, limit);

    let packed = zstd::bulk::compress(bytes, level % 4).expect("anything can be packed");
    let (whole, all) = unpack(&packed, bytes.len());
    assert!(all && whole == bytes);
    if !bytes.is_empty() {
        assert!(!unpack(&packed, bytes.len() - 1).1, "one byte too many was let through");
        let (seen, all) = unpack(&packed[..packed.len() - 1], bytes.len());
        assert!(!all && bytes.starts_with(&seen), "a body that was cut off passed for whole");
    }
});

fn unpack(raw: &[u8], limit: usize) -> (Vec<u8>, bool) {
    let mut admitted = 0;
    let (out, all) = unpacked(raw, limit, |n| admitted += n);
    assert!(out.len() <= limit + BLOCK && admitted <= limit);
    assert!(!all || (out.len() == admitted && out.len() <= limit));
    (out.to_vec(), all)
}
