//! A field that is a word or an object told apart by its `type`, such as `tool_choice`. Nothing else of it is kept.

use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Word(String),
    /// An object's `type`, when that is a string.
    Object(Option<String>),
    /// Of no use anywhere: a number, a list, …
    Other,
}

impl Choice {
    pub fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(w) if w == word)
    }

    /// An object's `type`; `?` when there is none.
    pub fn kind(&self) -> &str {
        match self {
            Self::Object(Some(kind)) => kind,
            _ => "?",
        }
    }
}

/// For errors.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "{word:?}"),
            Self::Object(Some(kind)) => write!(f, "an object of type {kind:?}"),
            Self::Object(None) => f.write_str("an object without a type"),
            Self::Other => f.write_str("neither a string nor an object"),
        }
    }
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(OfAnyKind)
    }
}

struct OfAnyKind;

impl<'de> Visitor<'de> for OfAnyKind {
    type Value = Choice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an object")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Choice, E> {
        Ok(Choice::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Choice, E> {
        Ok(Choice::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Choice, E> {
        Ok(Choice::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Choice, E> {
        Ok(Choice::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Choice, E> {
        Ok(Choice::Other)
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Choice, E> {
        Ok(Choice::Word(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Choice, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Choice::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Choice, A::Error> {
        let mut kind = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == "type" {
                kind = match map.next_value()? {
                    Choice::Word(word) => Some(word),
                    _ => None,
                };
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Choice::Object(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_an_objects_type() {
        let of = |json: &str| serde_json::from_str::<Choice>(json).unwrap();
        assert!(of("\"auto\"").is_word("auto") && !of("\"auto\"").is_word("none"));
        assert_eq!(of(r#"{"x":[{}],"type":"any","y":1}"#), Choice::Object(Some("any".into())));
        assert_eq!(of(r#"{"type":"any"}"#).kind(), "any");
        for odd in [r#"{"type":{"type":"any"}}"#, "{}", "[1,[2]]", "7", "-7", "1.5", "true", "\"any\""] {
            assert_eq!(of(odd).kind(), "?", "{odd}");
        }
        assert_eq!(of(r#"{"type":"function"}"#).to_string(), "an object of type \"function\"");
    }
}
