//! When generation ends (protocol §8.3).

use tinderbox_client::types::sampling::Stop as WireStop;

use crate::command::Stop;
use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};

use super::tokens;

/// Strings of one list. Each is looked for after every token.
const MAX_STRINGS: usize = 64;
/// Bytes of all strings together.
const MAX_STRING_BYTES: usize = 16 << 10;
/// Token ids of one list.
const MAX_IDS: usize = 1024;

/// `name` is the field's, for errors.
pub fn stop(wire: Option<&WireStop>, model: &ModelInfo, name: &str) -> Result<Stop> {
    match wire {
        None => Ok(Stop::Eos),
        Some(WireStop::Tokens(ids)) if ids.is_empty() => Ok(Stop::Never),
        Some(WireStop::Tokens(ids)) => {
            at_most(name, "token ids", ids.len(), MAX_IDS)?;
            tokens::ids(ids, name, 0, model).map(Stop::Tokens)
        }
        Some(WireStop::Text(text)) => strings(std::slice::from_ref(text), name),
        Some(WireStop::Texts(texts)) => strings(texts, name),
    }
}

fn strings(texts: &[String], name: &str) -> Result<Stop> {
    at_most(name, "strings", texts.len(), MAX_STRINGS)?;
    at_most(name, "bytes of strings", texts.iter().map(String::len).sum(), MAX_STRING_BYTES)?;
    if texts.iter().any(String::is_empty) {
        return Err(Error::user(format!("{name} holds an empty string, which every text contains")));
    }
    Ok(Stop::Strings(texts.to_vec()))
}

fn at_most(name: &str, what: &str, n: usize, limit: usize) -> Result<()> {
    if n <= limit {
        return Ok(());
    }
    Err(Error::user(format!("{name} has {n} {what}; at most {limit} are allowed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wire: WireStop) -> Result<Stop> {
        stop(Some(&wire), &tokens::tiny_model(), "stop")
    }

    #[test]
    fn every_form_of_stop() {
        assert_eq!(stop(None, &tokens::tiny_model(), "stop").unwrap(), Stop::Eos);
        assert_eq!(of(WireStop::Tokens(vec![])).unwrap(), Stop::Never);
        assert_eq!(of(WireStop::Tokens(vec![3, 4])).unwrap(), Stop::Tokens(vec![3, 4]));
        assert_eq!(of(WireStop::Text("a".into())).unwrap(), Stop::Strings(vec!["a".into()]));
        assert_eq!(of(WireStop::Texts(vec!["a".into()])).unwrap(), Stop::Strings(vec!["a".into()]));
        assert!(of(WireStop::Tokens(vec![10])).is_err());
        assert!(of(WireStop::Texts(vec![String::new()])).is_err());
    }

    #[test]
    fn lists_are_bounded() {
        let texts = |n: usize, length: usize| of(WireStop::Texts(vec!["x".repeat(length); n]));
        assert!(texts(64, 256).is_ok());
        assert!(texts(65, 1).unwrap_err().message.contains("65 strings"));
        assert!(texts(1, 16_385).unwrap_err().message.contains("16385 bytes"));
        assert!(of(WireStop::Tokens(vec![3; 1024])).is_ok());
        assert!(of(WireStop::Tokens(vec![3; 1025])).unwrap_err().message.contains("1025 token ids"));
    }

    #[test]
    fn a_mixed_list_is_explained() {
        let e = serde_json::from_str::<WireStop>(r#"["a", 5]"#).unwrap_err().to_string();
        assert!(e.contains("token ids, texts or lists of token ids, not several of these"), "{e}");
    }
}
