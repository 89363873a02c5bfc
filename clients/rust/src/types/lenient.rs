//! What the wire types forgive, and what not: `null` is absent, a seed may have any sign, an array is no object.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// User metadata as it is stored and returned: string values only.
pub type Metadata = BTreeMap<String, String>;

/// A request body. Unlike plain `serde_json`, an array never passes for a struct.
pub fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        // An empty or broken body keeps the parser's own message.
        serde_json::from_slice::<serde::de::IgnoredAny>(body)?;
        return Err(serde_json::Error::custom("the body must be a JSON object"));
    }
    serde_json::from_slice(body)
}

/// `null` or a value; `null` gives the type's default.
pub fn null_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// An object or `null`, never an array.
pub fn object<'de, D, T>(d: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let map = Option::<Map<String, Value>>::deserialize(d)?;
    map.map(|m| T::deserialize(Value::Object(m)).map_err(D::Error::custom)).transpose()
}

/// As [`object`], where `null` gives the type's default.
pub fn object_or_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    Ok(object(d)?.unwrap_or_default())
}

/// A 64-bit integer of either sign; negative ones keep their bits.
pub fn seed<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    let Some(v) = Option::<Value>::deserialize(d)? else { return Ok(None) };
    v.as_u64()
        .or_else(|| v.as_i64().map(|i| i as u64))
        .map(Some)
        .ok_or_else(|| D::Error::custom(format!("seed {v} is not a 64-bit integer")))
}

/// Metadata whose values the client may have left as numbers or booleans: those become their JSON text.
pub fn metadata<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Metadata>, D::Error> {
    let text = |v: Value| if let Value::String(s) = v { s } else { v.to_string() };
    let map = Option::<Map<String, Value>>::deserialize(d)?;
    Ok(map.map(|m| m.into_iter().map(|(k, v)| (k, text(v))).collect()))
}

/// Keeps `null` (`Some(None)`) and absent (`None`, through `serde(default)`) apart.
pub fn present<'de, D, T>(d: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(d).map(Some)
}

/// A module with a field's default (`value`) and the deserialiser that also gives it for `null` (`or_null`).
macro_rules! default_value {
    ($name:ident: $t:ty = $v:expr) => {
        mod $name {
            pub fn value() -> $t {
                $v
            }

            pub fn or_null<'de, D: serde::Deserializer<'de>>(d: D) -> Result<$t, D::Error> {
                Ok(<Option<$t> as serde::Deserialize>::deserialize(d)?.unwrap_or_else(value))
            }
        }
    };
}
pub(crate) use default_value;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug, PartialEq)]
    struct Sample {
        #[serde(default, deserialize_with = "seed")]
        seed: Option<u64>,
        #[serde(default, deserialize_with = "metadata")]
        meta: Option<Metadata>,
        #[serde(default, deserialize_with = "present")]
        ttl: Option<Option<i64>>,
    }

    #[test]
    fn arrays_and_rubbish_are_no_objects() {
        for body in ["[]", "null", "\"text\"", "", "{", "nonsense"] {
            assert!(parse_object::<Sample>(body.as_bytes()).is_err(), "{body}");
        }
        assert!(parse_object::<Sample>(b" \n{}").is_ok());
    }

    #[test]
    fn null_and_absent_differ_only_where_it_matters() {
        let s: Sample = parse_object(br#"{"seed": -1, "meta": {"a": 1, "b": "x"}, "ttl": null}"#).unwrap();
        assert_eq!(s.seed, Some(u64::MAX));
        assert_eq!(
            s.meta.unwrap().into_iter().collect::<Vec<_>>(),
            [("a".into(), "1".into()), ("b".into(), "x".into())]
        );
        assert_eq!(s.ttl, Some(None));
        let s: Sample = parse_object(br#"{"seed": null, "meta": null}"#).unwrap();
        assert_eq!(s, Sample { seed: None, meta: None, ttl: None });
        assert!(parse_object::<Sample>(br#"{"seed": 1.5}"#).is_err());
    }
}
