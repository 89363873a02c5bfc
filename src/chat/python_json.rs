//! JSON as Python's `json.dumps` spells it, which is how chat templates show tools and arguments to a model.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The arguments of `json.dumps` that templates use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Style {
    pub ensure_ascii: bool,
    /// What a level is indented by; `None` = all on one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Style {
    pub fn one_line() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }

    /// With `indent` each item stands on a line of its own, and no blank follows the comma.
    pub fn indented(indent: String) -> Self {
        Self { indent: Some(indent), item_separator: ",".into(), ..Self::one_line() }
    }
}

/// What is written at most: indents make much of little where lists stand deep inside each other.
const MAX_BYTES: usize = 64 << 20;

/// # Errors
/// For undefined values and others that JSON has no form for, and for more than 64 MiB of text.
pub fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    Writer { style, out: &mut out }.value(value, 0)?;
    Ok(out)
}

struct Writer<'a> {
    style: &'a Style,
    out: &'a mut String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if self.out.len() > MAX_BYTES {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("more than {MAX_BYTES} bytes of JSON")));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("a value of kind {other} has no JSON form"),
                ));
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let items: Vec<Value> = value.try_iter()?.collect();
        self.out.push('[');
        for (i, item) in items.iter().enumerate() {
            self.before_item(i, depth);
            self.value(item, depth + 1)?;
        }
        self.close(items.is_empty(), depth, ']');
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sort_keys {
            keys.sort_by_key(ToString::to_string);
        }
        self.out.push('{');
        for (i, key) in keys.iter().enumerate() {
            self.before_item(i, depth);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                _ => {
                    let mut text = String::new();
                    Writer { style: self.style, out: &mut text }.value(key, 0)?;
                    self.string(&text);
                }
            }
            self.out.push_str(&self.style.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close(keys.is_empty(), depth, '}');
        Ok(())
    }

    fn before_item(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.style.item_separator);
        }
        self.line(depth + 1);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => self.escape(c as u16),
                c if self.style.ensure_ascii && !(' '..='~').contains(&c) => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| self.escape(*unit));
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, unit: u16) {
        self.out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// Python's `repr` of a float: the shortest digits, an exponent below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str, style: &Style) -> String {
        dumps(&serde_json::from_str::<Value>(json).unwrap(), style).unwrap()
    }

    #[test]
    fn order_spaces_and_characters_are_pythons() {
        let json = r#"{"b":[1,2.0,null],"a":{"x":true,"é":"ü\"\n\u0001/"},"e":[],"o":{}}"#;
        assert_eq!(
            of(json, &Style::one_line()),
            r#"{"b": [1, 2.0, null], "a": {"x": true, "é": "ü\"\n\u0001/"}, "e": [], "o": {}}"#
        );
        assert_eq!(
            of(r#"{"b":[1],"a":{}}"#, &Style::indented("  ".into())),
            "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}"
        );
        let sorted = Style { sort_keys: true, ensure_ascii: true, ..Style::one_line() };
        assert_eq!(of(r#"{"b":"é😀","a":1}"#, &sorted), r#"{"a": 1, "b": "\u00e9\ud83d\ude00"}"#);
    }

    #[test]
    fn floats_are_pythons() {
        for (json, want) in [
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("0.1", "0.1"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("1.5e300", "1.5e+300"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("123456789", "123456789"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            assert_eq!(of(json, &Style::one_line()), want);
        }
    }

    #[test]
    fn indents_cannot_make_much_of_little() {
        let deep = format!("{}{}0{}", "[".repeat(100), "0,".repeat(20_000), "]".repeat(100));
        let value = serde_json::from_str::<Value>(&deep).unwrap();
        let e = dumps(&value, &Style::indented(" ".repeat(64))).unwrap_err();
        assert!(e.to_string().contains("more than 67108864 bytes of JSON"), "{e}");
        assert_eq!(dumps(&value, &Style::one_line()).unwrap().len(), deep.len() + 20_000);
    }

    #[test]
    fn undefined_has_no_form() {
        assert!(dumps(&Value::UNDEFINED, &Style::one_line()).is_err());
    }
}
