//! `tokenizer.json` and texts: a file loads or is refused, and whatever text goes in, ids and bytes that fit come out.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tinderbox::tokenizer::Tokenizer;
use tinderbox::tokenizer::stream::TextStream;
use tinderbox_fuzz::{or_abort, panics_may_be_caught};

/// Byte-level, as most models have it.
static KNOWN: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_json(include_bytes!("../../golden/chat/tokenizer.json")).expect("a good file"));
const TEXTS: [&str; 3] = ["", "hello there", "é 世界 😀\n\t<0xE4>▁a <|im_end|>"];

fuzz_target!(init: panics_may_be_caught(), |input: &[u8]| or_abort(|| read(input)));

fn read(input: &[u8]) {
    match input.split_first() {
        Some((b'{', _)) => {
            let (file, text) = match input.iter().position(|b| *b == 0) {
                Some(end) => (&input[..end], &input[end + 1..]),
                None => (input, &b""[..]),
            };
            let Ok(tokenizer) = Tokenizer::from_json(file) else { return };
            TEXTS.iter().for_each(|text| works(&tokenizer, text));
            works(&tokenizer, &String::from_utf8_lossy(text));
        }
        Some((first, rest)) => {
            if let Ok(text) = std::str::from_utf8(rest) {
                survives(text);
            }
            let size = KNOWN.vocab_size() as u32;
            decodes(
                &KNOWN,
                &rest.iter().map(|b| u32::from(*b) * 3 % (size + u32::from(*first % 4))).collect::<Vec<_>>(),
            );
        }
        None => {}
    }
}

fn works(tokenizer: &Tokenizer, text: &str) {
    assert!(tokenizer.longest_token_bytes() >= 1);
    for special in [false, true] {
        if let Ok(ids) = tokenizer.encode(text, special) {
            decodes(tokenizer, &ids);
        }
    }
}

/// Byte-level vocabularies lose nothing.
fn survives(text: &str) {
    let ids = KNOWN.encode(text, false).expect("every byte has a token");
    let size = KNOWN.vocab_size();
    assert!(ids.iter().all(|id| (*id as usize) < size));
    assert_eq!(KNOWN.decode(&ids, false).expect("they decode"), text);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| KNOWN.token_bytes(*id)).collect();
    assert_eq!(bytes, text.as_bytes());
    assert!(ids.iter().all(|id| KNOWN.token_bytes(*id).len() <= KNOWN.longest_token_bytes()));
    assert_eq!(streamed(&KNOWN, &ids), KNOWN.decode(&ids, true).expect("they decode"));
}

fn decodes(tokenizer: &Tokenizer, ids: &[u32]) {
    let _ = tokenizer.decode(ids, true);
    streamed(tokenizer, ids);
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = TextStream::default();
    let mut text: String = ids.iter().map(|id| stream.push(tokenizer, *id)).collect();
    text += &stream.finish();
    text
}
