//! What a JSON body may come to in memory once it is read, told from its structure before anything of it is.

use super::numbers::end_of_string;

/// Bytes that each may take beyond those it has in the body: an object as a node of a map, a list with its first
/// allocation, a text with its own, any other value in the list that holds it.
const OBJECT: usize = 700;
const LIST: usize = 160;
const TEXT: usize = 64;
const VALUE: usize = 32;

/// An upper bound for objects and lists of any kind, in bytes; what has fields of known types takes much less. One pass,
/// without recursion, also over what is no JSON.
pub fn parsed_bytes(body: &[u8]) -> usize {
    let (mut bytes, mut at) = (0usize, 0);
    while let Some(byte) = body.get(at) {
        at += 1;
        bytes += match byte {
            b'{' => OBJECT,
            b'[' => LIST,
            b',' | b':' => VALUE,
            b'"' => {
                at = end_of_string(body, at - 1).unwrap_or(body.len());
                TEXT
            }
            _ => 0,
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_outside_of_texts_counts() {
        assert_eq!(parsed_bytes(br#"{"a": [1, 2], "b": "[{,:\"{"}"#), OBJECT + LIST + 4 * VALUE + 3 * TEXT);
        assert_eq!(parsed_bytes(b"7"), 0);
        assert_eq!(parsed_bytes(br#"["{{{{"#), LIST + TEXT, "a text that does not end");
    }

    #[test]
    fn a_list_of_small_maps_takes_no_more_than_that() {
        let body = format!("[{}{{\"a\":0}}]", "{\"a\":0},".repeat(999));
        // A map's node has room for eleven keys and values.
        let node = 11 * (size_of::<String>() + size_of::<serde_json::Value>());
        let list = 1000 * size_of::<serde_json::Value>();
        assert!(parsed_bytes(body.as_bytes()) > 1000 * node + list);
    }
}
