//! A list whose first element decides what it is: token ids, texts, or lists of token ids. Read without keeping it twice.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Items {
    /// Also the empty list.
    Ids(Vec<i64>),
    Texts(Vec<String>),
    Lists(Vec<Vec<i64>>),
}

impl Items {
    fn of(first: Item) -> Self {
        match first {
            Item::Id(id) => Self::Ids(vec![id]),
            Item::Text(text) => Self::Texts(vec![text]),
            Item::List(list) => Self::Lists(vec![list]),
        }
    }

    /// False when it is not of this list's kind.
    fn push(&mut self, item: Item) -> bool {
        match (self, item) {
            (Self::Ids(ids), Item::Id(id)) => ids.push(id),
            (Self::Texts(texts), Item::Text(text)) => texts.push(text),
            (Self::Lists(lists), Item::List(list)) => lists.push(list),
            _ => return false,
        }
        true
    }
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Items;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items, A::Error> {
                let Some(first) = list.next_element()? else { return Ok(Items::Ids(Vec::new())) };
                let mut items = Items::of(first);
                while let Some(item) = list.next_element()? {
                    if !items.push(item) {
                        return Err(Error::custom(
                            "a list holds token ids, texts or lists of token ids, not several of these",
                        ));
                    }
                }
                Ok(items)
            }
        }

        d.deserialize_any(List)
    }
}

enum Item {
    Id(i64),
    Text(String),
    List(Vec<i64>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct One;

        impl<'de> Visitor<'de> for One {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id, a text or a list of token ids")
            }

            fn visit_i64<E: Error>(self, v: i64) -> Result<Item, E> {
                Ok(Item::Id(v))
            }

            fn visit_u64<E: Error>(self, v: u64) -> Result<Item, E> {
                i64::try_from(v).map(Item::Id).map_err(|_| E::invalid_value(Unexpected::Unsigned(v), &self))
            }

            fn visit_str<E: Error>(self, v: &str) -> Result<Item, E> {
                Ok(Item::Text(v.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Item, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Item::List)
            }
        }

        d.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_element_decides() {
        let of = |json: &str| serde_json::from_str::<Items>(json);
        assert_eq!(of("[]").unwrap(), Items::Ids(vec![]));
        assert_eq!(of("[1, -2]").unwrap(), Items::Ids(vec![1, -2]));
        assert_eq!(of(r#"["a", "b"]"#).unwrap(), Items::Texts(vec!["a".into(), "b".into()]));
        assert_eq!(of("[[], [1]]").unwrap(), Items::Lists(vec![vec![], vec![1]]));
        for mixed in [r#"[1, "a"]"#, r#"["a", 1]"#, "[[1], 1]"] {
            assert!(of(mixed).unwrap_err().to_string().contains("not several of these"), "{mixed}");
        }
        for bad in ["[1.5]", "[null]", "[{}]", "[[[1]]]", "7", "[18446744073709551615]"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
