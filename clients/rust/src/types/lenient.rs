//! What the wire types forgive, and what not: `null` is absent, a seed may have any sign, an array is no object.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::json_text::JsonText;

/// User metadata as it is stored and returned: string values only.
pub type Metadata = BTreeMap<String, String>;

/// A request body. Unlike plain `serde_json`, an array never passes for a struct.
pub fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        // An empty or broken body keeps the parser's own message.
        serde_json::from_slice::<serde::de::IgnoredAny>(body)?;
        return Err(<serde_json::Error as Error>::custom("the body must be a JSON object"));
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
    T: Deserialize<'de>,
{
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object or null")
        }

        fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    d.deserialize_any(Object(PhantomData))
}

/// As [`object`], where `null` gives the type's default.
pub fn object_or_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(object(d)?.unwrap_or_default())
}

/// A 64-bit integer of either sign; negative ones keep their bits.
pub fn seed<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    struct Seed;

    impl Visitor<'_> for Seed {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a seed, which is a 64-bit integer")
        }

        fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
            Ok(None)
        }

        fn visit_u64<E: Error>(self, v: u64) -> Result<Option<u64>, E> {
            Ok(Some(v))
        }

        fn visit_i64<E: Error>(self, v: i64) -> Result<Option<u64>, E> {
            Ok(Some(v as u64))
        }
    }

    d.deserialize_any(Seed)
}

/// Metadata whose values the client may have left as numbers or booleans: those become their JSON text.
pub fn metadata<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Metadata>, D::Error> {
    let map = Option::<BTreeMap<String, JsonText>>::deserialize(d)?;
    Ok(map.map(|m| m.into_iter().map(|(k, v)| (k, v.into_plain())).collect()))
}

/// A string or a list `L`, told apart as they come: an untagged enum would keep the list twice. `expecting` says what it
/// must be.
pub fn text_or_list<'de, D, L, T>(
    d: D,
    expecting: &'static str,
    text: fn(String) -> T,
    list: fn(L) -> T,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    L: Deserialize<'de>,
{
    struct Either<L, T> {
        expecting: &'static str,
        text: fn(String) -> T,
        list: fn(L) -> T,
    }

    impl<'de, L: Deserialize<'de>, T> Visitor<'de> for Either<L, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expecting)
        }

        fn visit_str<E: Error>(self, v: &str) -> Result<T, E> {
            Ok((self.text)(v.to_owned()))
        }

        fn visit_string<E: Error>(self, v: String) -> Result<T, E> {
            Ok((self.text)(v))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
            L::deserialize(SeqAccessDeserializer::new(list)).map(self.list)
        }
    }

    d.deserialize_any(Either { expecting, text, list })
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
    fn an_object_is_read_without_a_detour() {
        #[derive(Deserialize, Debug)]
        struct Outer {
            #[serde(default, deserialize_with = "object")]
            inner: Option<Sample>,
        }
        let of = |inner: &str| serde_json::from_str::<Outer>(&format!(r#"{{"inner":{inner}}}"#));
        assert_eq!(of(r#"{"seed":3,"x":[[]]}"#).unwrap().inner.unwrap().seed, Some(3));
        assert_eq!(of("null").unwrap().inner, None);
        assert!(of("[3]").unwrap_err().to_string().contains("expected an object or null"));
        // What is wrong is said with its place, which a value that was read before has lost.
        assert!(of(r#"{"seed":"x"}"#).unwrap_err().to_string().contains("at line 1 column"));
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
        for seed in ["1.5", "\"1\"", "[1]", "{}", "18446744073709551616"] {
            let e = parse_object::<Sample>(format!("{{\"seed\": {seed}}}").as_bytes()).unwrap_err().to_string();
            assert!(e.contains("expected a seed, which is a 64-bit integer"), "{e}");
        }
    }
}
