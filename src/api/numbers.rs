//! The run and number of a body that cannot be read: found by looking over the bytes, so that the number can be spent
//! (protocol §11.2 rule 4).

use crate::ids::ModelId;

/// `model_id` and `seq_id` of a JSON object or a protobuf request, whole or cut off, valid or not; `None` where they
/// cannot be told. Takes one pass, without recursion.
pub fn find(bytes: &[u8]) -> Option<(ModelId, u64)> {
    let looks_json = bytes.trim_ascii_start().starts_with(b"{");
    let (model, seq) = looks_json.then(|| in_json(bytes)).flatten().or_else(|| in_proto(bytes))?;
    (seq > 0).then_some((ModelId(model), seq))
}

/// Of the outer object; where brackets do not match, of any. The last one counts, as to the clients' own parsers.
fn in_json(bytes: &[u8]) -> Option<(String, u64)> {
    let mut outer = (None, None);
    let mut inner = (None, None);
    let (mut depth, mut at) = (0usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let Some(end) = end_of_string(bytes, at) else { break };
                let key = &bytes[at..end];
                at = end;
                if let Some(value) = after_colon(bytes, end) {
                    let found = if depth == 1 { &mut outer } else { &mut inner };
                    if says(key, "model_id") {
                        found.0 = text(bytes, value).or(found.0.take());
                    } else if says(key, "seq_id") {
                        found.1 = number(&bytes[value..]).or(found.1);
                    }
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Some((outer.0.or(inner.0)?, outer.1.or(inner.1)?))
}

/// Whether a string with its quotes says this name, by escapes too.
fn says(string: &[u8], name: &str) -> bool {
    let plain = &string[1..string.len() - 1];
    // An escape takes six bytes at most for each of a name's.
    let escaped = plain.len() <= 6 * name.len() && plain.contains(&b'\\');
    plain == name.as_bytes() || (escaped && serde_json::from_slice::<String>(string).is_ok_and(|s| s == name))
}

/// Just behind the closing quote of the string that opens at `start`.
pub fn end_of_string(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Where the value of a key begins, when the string that ended before `at` was one.
fn after_colon(bytes: &[u8], at: usize) -> Option<usize> {
    let skip = |from: usize| from + bytes[from..].iter().take_while(|b| b.is_ascii_whitespace()).count();
    let colon = skip(at);
    (bytes.get(colon) == Some(&b':')).then(|| skip(colon + 1))
}

fn text(bytes: &[u8], at: usize) -> Option<String> {
    (bytes.get(at) == Some(&b'"')).then_some(())?;
    serde_json::from_slice(&bytes[at..end_of_string(bytes, at)?]).ok()
}

/// A whole number, also one that was written as `7.0` or `"7"`.
fn number(bytes: &[u8]) -> Option<u64> {
    let bytes = bytes.strip_prefix(b"\"").unwrap_or(bytes);
    let length = bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || b".+-".contains(b)).count();
    let literal = std::str::from_utf8(&bytes[..length]).ok()?;
    let whole = |x: &f64| x.fract() == 0.0 && (0.0..9e15).contains(x);
    literal.parse().ok().or_else(|| literal.parse::<f64>().ok().filter(whole).map(|x| x as u64))
}

/// Fields 1 and 2 of the message. The last one counts, as to every decoder.
fn in_proto(bytes: &[u8]) -> Option<(String, u64)> {
    let (mut model, mut seq) = (None, None);
    for field in Fields(bytes) {
        match field {
            Field { number: 1, value: Value::Bytes(b) } => model = String::from_utf8(b.to_vec()).ok(),
            // An int32 as every decoder reads it: its lowest bits.
            Field { number: 2, value: Value::Varint(n) } => seq = Some(n as i32),
            _ => {}
        }
    }
    Some((model?, u64::try_from(seq?).ok()?))
}

/// How many messages lie in a protobuf forward_backward request, datums and what is directly in them. Each takes a
/// struct in memory, however short it is on the wire.
pub fn messages_in(bytes: &[u8]) -> usize {
    let datums = Fields(bytes).filter(|f| f.number == 3);
    datums.map(|f| if let Value::Bytes(datum) = f.value { 1 + Fields(datum).count() } else { 0 }).sum()
}

/// A protobuf message's fields, up to the first that cannot be read.
struct Fields<'a>(&'a [u8]);

struct Field<'a> {
    number: u64,
    value: Value<'a>,
}

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Other,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        let value = if tag & 7 == GROUP { self.skip_group()? } else { self.value(tag)? };
        Some(Field { number: tag >> 3, value })
    }
}

/// What of a tag says that a group begins, or ends. No message has groups, but a decoder passes over those it does not know.
const GROUP: u64 = 3;
const GROUP_END: u64 = 4;

impl<'a> Fields<'a> {
    fn value(&mut self, tag: u64) -> Option<Value<'a>> {
        Some(match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Other)?,
            _ => return None,
        })
    }

    /// To behind the end of the group that has begun, and of all groups in it.
    fn skip_group(&mut self) -> Option<Value<'a>> {
        let mut open = 1usize;
        while open > 0 {
            let tag = self.varint()?;
            match tag & 7 {
                GROUP => open += 1,
                GROUP_END => open -= 1,
                _ => {
                    self.value(tag)?;
                }
            }
        }
        Some(Value::Other)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in 0..10 {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f).checked_shl(7 * shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use tinderbox_client::proto::{Datum, ForwardBackwardRequest};

    fn found(bytes: &[u8]) -> Option<(String, u64)> {
        find(bytes).map(|(model, seq)| (model.0, seq))
    }

    #[test]
    fn the_number_of_a_json_body_that_is_wrong_in_any_way() {
        let m4 = Some(("m".to_owned(), 4));
        let deep = format!(r#"{{"x":{}{},"model_id":"m","seq_id":4}}"#, "[".repeat(5000), "]".repeat(5000));
        for body in [
            r#"{"model_id":"m","seq_id":4,"adam_params":{"learning_rate":"high"}}"#,
            r#"{"model_id":"m","seq_id":4,"adam_params":{"learning_rate":NaN}}"#,
            r#" {"learning_rate":1e999, "seq_id" : 4 , "model_id" : "m"}"#,
            r#"{"model_id":"m","seq_id":4,"data":[[{"tok"#,
            r#"{"data":[}, "model_id":"\u006d","seq_id":4.0}"#,
            r#"{"text":"\"seq_id\":9}","inner":{"model_id":"x","seq_id":8},"model_id":"m","seq_id":"4"}"#,
            r#"{"model_id":"m","seq_id":3,"seq_id":4}"#,
            r#"{"model_id":"x","seq_id":4,"model_id":"m","seq_id":"four"}"#,
            r#"{"model_id":"m","seq_id":3,"\u0073eq_\u0069d":4}"#,
            &deep,
        ] {
            assert_eq!(found(body.as_bytes()), m4, "{body}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_not_guessed() {
        for body in [
            "",
            "{",
            r#"{"seq_id":4}"#,
            r#"{"model_id":"m"}"#,
            r#"{"model_id":"m","seq_id":0}"#,
            r#"{"model_id":"m","seq_id":-4}"#,
            r#"{"model_id":"m","seq_id":4.5}"#,
            r#"{"model_id":"m","seq_id":null}"#,
            r#"{"model_id":"m","seq_id":"#,
            r#"{"model_id":7,"seq_id":4}"#,
            r#"{"model_id":"m\"#,
        ] {
            assert_eq!(found(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn of_two_numbers_a_protobuf_body_has_the_last() {
        let with = |seq_id| ForwardBackwardRequest { model_id: "m".into(), seq_id, ..Default::default() };
        let twice = [with(3).encode_to_vec(), with(4).encode_to_vec()].concat();
        assert_eq!(ForwardBackwardRequest::decode(&twice[..]).unwrap().seq_id, 4);
        assert_eq!(found(&twice), Some(("m".into(), 4)));
        assert_eq!(found(&[&twice[..], b"\x1a\xff\xff"].concat()), Some(("m".into(), 4)));
        let wide = [&with(3).encode_to_vec()[..], b"\x10\x84\x80\x80\x80\x10"].concat();
        let decoded = ForwardBackwardRequest::decode(&wide[..]).unwrap().seq_id;
        assert_eq!(found(&wide), Some(("m".into(), decoded as u64)));
    }

    #[test]
    fn the_number_of_a_broken_protobuf_body() {
        let whole = ForwardBackwardRequest {
            model_id: "m".into(),
            seq_id: 4,
            data: vec![Datum::default(); 3],
            ..Default::default()
        };
        let mut bytes = whole.encode_to_vec();
        assert_eq!(messages_in(&bytes), 3);
        // Group 15, in it a number and group 2: a decoder passes over it and reads on.
        let grouped = [&b"\x7b\x08\x01\x13\x14\x7c"[..], &bytes].concat();
        assert_eq!(ForwardBackwardRequest::decode(&grouped[..]).unwrap(), whole);
        assert_eq!((messages_in(&grouped), found(&grouped)), (3, Some(("m".into(), 4))));
        bytes.extend(b"\x1a\xff\xff");
        assert!(ForwardBackwardRequest::decode(&bytes[..]).is_err());
        assert_eq!(found(&bytes), Some(("m".into(), 4)));
        assert_eq!(found(&bytes[..4]), None);
        assert_eq!(found(b"\x0a\xff\xff"), None);
        let negative = ForwardBackwardRequest { seq_id: -4, ..whole };
        assert_eq!(found(&negative.encode_to_vec()), None);
    }
}
