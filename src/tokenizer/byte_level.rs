//! GPT-2's alphabet: each byte is written as one visible character in byte-level vocabularies.

/// The bytes of a byte-level token. A token with a character outside the alphabet (an added one) is plain text.
pub fn bytes_of(token: &str) -> Vec<u8> {
    token.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Bytes that are visible as Latin-1 characters stand for themselves; the others take the characters from U+0100 on, in
/// their order: 0x00–0x20, 0x7F–0xA0, 0xAD.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The inverse of `byte_of`.
#[cfg(test)]
pub fn char_of(byte: u8) -> char {
    (0..=0x143).filter_map(char::from_u32).find(|&c| byte_of(c) == Some(byte)).expect("the alphabet covers every byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_spellings() {
        assert_eq!(bytes_of("Ġhi"), b" hi");
        assert_eq!(bytes_of("Ċ"), b"\n");
        assert_eq!(bytes_of("ä¸ĸ"), "世".as_bytes());
        assert_eq!(bytes_of("<|im_end|>"), b"<|im_end|>");
        assert_eq!(bytes_of("two words"), b"two words");
        assert_eq!(bytes_of("世"), "世".as_bytes());
    }

    #[test]
    fn the_alphabet_is_a_bijection() {
        let chars: std::collections::HashSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(chars.len(), 256);
        let ours = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert!(chars.iter().all(|c| ours.contains(c)));
    }
}
