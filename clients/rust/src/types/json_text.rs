//! JSON values kept as text: what nobody looks into takes no more memory than it took on the wire.

use std::fmt::{self, Display, Write as _};

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Any value, without white space between its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonText(String);

/// A list, or `null` for an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonList(JsonText);

impl JsonText {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What a string says; of anything else its JSON.
    pub fn into_plain(self) -> String {
        match self.0.starts_with('"') {
            true => serde_json::from_str(&self.0).unwrap_or(self.0),
            false => self.0,
        }
    }
}

impl Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let mut text = String::new();
        Writer(&mut text).deserialize(d)?;
        Ok(Self(text))
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<Value>(&self.0).map_err(serde::ser::Error::custom)?.serialize(s)
    }
}

impl JsonList {
    pub fn is_empty(&self) -> bool {
        self.as_str() == "[]"
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Default for JsonList {
    fn default() -> Self {
        Self(JsonText("[]".into()))
    }
}

impl<'de> Deserialize<'de> for JsonList {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match JsonText::deserialize(d)? {
            text if text.0.starts_with('[') => Ok(Self(text)),
            text if text.0 == "null" => Ok(Self::default()),
            _ => Err(D::Error::custom("it must be a list")),
        }
    }
}

impl Serialize for JsonList {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

/// Appends a value as JSON while it is being read.
struct Writer<'a>(&'a mut String);

impl Writer<'_> {
    fn push<E: serde::de::Error>(self, value: impl Display) -> Result<(), E> {
        write!(self.0, "{value}").map_err(E::custom)
    }

    fn string<E: serde::de::Error>(&mut self, text: &str) -> Result<(), E> {
        self.0.push_str(&serde_json::to_string(text).map_err(E::custom)?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Writer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Writer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.push("null")
    }

    fn visit_bool<E: serde::de::Error>(self, v: bool) -> Result<(), E> {
        self.push(v)
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<(), E> {
        self.push(v)
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<(), E> {
        self.push(v)
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<(), E> {
        // As JSON spells it: 1.0, not 1.
        self.push(Value::from(v))
    }

    fn visit_str<E: serde::de::Error>(mut self, v: &str) -> Result<(), E> {
        self.string(v)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.push('[');
        let start = self.0.len();
        while list.next_element_seed(Writer(self.0))?.is_some() {
            self.0.push(',');
        }
        close(self.0, start, ']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        self.0.push('{');
        let start = self.0.len();
        while let Some(key) = map.next_key::<String>()? {
            self.string(&key)?;
            self.0.push(':');
            map.next_value_seed(Writer(self.0))?;
            self.0.push(',');
        }
        close(self.0, start, '}');
        Ok(())
    }
}

/// Ends what began at `start`; behind its last element stands a comma.
fn close(text: &mut String, start: usize, end: char) {
    if text.len() > start {
        text.pop();
    }
    text.push(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_as_it_was_read() {
        for json in [
            r#"{"b":[1,-2,3.5,1.0,null,true],"a":{"q":"\"\n"},"e":{},"l":[[]]}"#,
            "[]",
            r#""x""#,
            "18446744073709551615",
        ] {
            let text: JsonText = serde_json::from_str(json).unwrap();
            assert_eq!(text.as_str(), json);
            let (again, whole): (Value, Value) =
                (serde_json::to_value(&text).unwrap(), serde_json::from_str(json).unwrap());
            assert_eq!(again, whole);
        }
        assert_eq!(serde_json::from_str::<JsonText>(" [ 1 , 2 ] ").unwrap().as_str(), "[1,2]");
        assert!(serde_json::from_str::<JsonText>("[1,").is_err());
    }

    #[test]
    fn a_list_is_a_list_or_null() {
        assert_eq!(serde_json::from_str::<JsonList>("[{}]").unwrap().as_str(), "[{}]");
        assert!(serde_json::from_str::<JsonList>("null").unwrap().is_empty());
        assert!(serde_json::from_str::<JsonList>("[ ]").unwrap().is_empty());
        for bad in ["{}", "7", r#""[""#] {
            assert!(serde_json::from_str::<JsonList>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_string_is_plain() {
        let plain = |json: &str| serde_json::from_str::<JsonText>(json).unwrap().into_plain();
        assert_eq!((plain(r#""a\"b""#).as_str(), plain("[1]").as_str(), plain("0.5").as_str()), ("a\"b", "[1]", "0.5"));
    }
}
