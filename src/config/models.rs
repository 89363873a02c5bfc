//! Which models to serve: `[NAME=]DIR` or `[NAME=]HUB_ID`.

use std::path::{Path, PathBuf};

use super::env::Env;
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelArg {
    /// What clients ask for; may hold `/`.
    pub name: String,
    pub source: ModelSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    Dir(PathBuf),
    /// `ORG/NAME` on the Hugging Face hub.
    Hub(String),
}

/// The models of the command line, or else of `TINDERBOX_MODEL`: at least one, each name once.
pub fn from_args(flags: Vec<String>, env: &Env) -> Result<Vec<ModelArg>> {
    let texts = if flags.is_empty() { env.list("TINDERBOX_MODEL") } else { flags };
    if texts.is_empty() {
        return Err(Error::user(
            "no model to serve: give --model [NAME=]DIR with a Hugging Face model directory, or --model ORG/NAME with a \
             hub id (or set TINDERBOX_MODEL); `tinderbox demo` needs none",
        ));
    }
    let models: Vec<ModelArg> = texts.iter().map(|t| parse(t)).collect::<Result<_>>()?;
    for (i, model) in models.iter().enumerate() {
        if models[..i].iter().any(|m| m.name == model.name) {
            return Err(Error::user(format!(
                "--model: the name {:?} is given twice; tell them apart with NAME=DIR",
                model.name
            )));
        }
    }
    Ok(models)
}

/// Reads one `--model` value; looks at the file system to tell a directory from a hub id.
fn parse(text: &str) -> Result<ModelArg> {
    // A directory's own name may hold `=`.
    let (name, place) = match text.split_once('=') {
        Some((name, place)) if !Path::new(text).is_dir() => (Some(name), place),
        _ => (None, text),
    };
    let source = source(text, place)?;
    let name = match (name, &source) {
        (Some(name), _) => name.to_owned(),
        (None, ModelSource::Hub(id)) => id.clone(),
        (None, ModelSource::Dir(dir)) => last_part(dir)?,
    };
    check_name(text, &name)?;
    Ok(ModelArg { name, source })
}

fn source(text: &str, place: &str) -> Result<ModelSource> {
    let path = Path::new(place);
    if path.is_dir() {
        return Ok(ModelSource::Dir(path.into()));
    }
    if path.exists() {
        return Err(Error::user(format!("--model {text}: {place} is not a directory")));
    }
    if is_hub_id(place) {
        return Ok(ModelSource::Hub(place.into()));
    }
    Err(Error::user(format!(
        "--model {text}: there is no directory {place:?}, and it is not a hub id of the form ORG/NAME"
    )))
}

/// `ORG/NAME`, each of letters, digits, `-`, `_`, `.`, beginning with a letter, a digit or `_`.
fn is_hub_id(s: &str) -> bool {
    let part = |p: &str| {
        p.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && p.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
    };
    s.split_once('/').is_some_and(|(org, name)| part(org) && part(name))
}

fn last_part(dir: &Path) -> Result<String> {
    let whole = std::path::absolute(dir).and_then(|d| if d.file_name().is_some() { Ok(d) } else { d.canonicalize() });
    let part = whole.ok().and_then(|d| d.file_name().and_then(|n| n.to_str()).map(str::to_owned));
    part.ok_or_else(|| Error::user(format!("--model {}: give it a name, as NAME={}", dir.display(), dir.display())))
}

fn check_name(text: &str, name: &str) -> Result<()> {
    let bad = |why: &str| Err(Error::user(format!("--model {text}: the name {name:?} {why}")));
    match name {
        "" => bad("is empty"),
        _ if name.len() > 255 => bad("is longer than 255 bytes"),
        _ if name.chars().any(|c| c.is_control() || c.is_whitespace()) => bad("holds white space"),
        // What follows a colon says how a model is used: clients cut a name there to find its tokenizer.
        _ if name.contains(':') => bad(
            "holds a colon: clients cut names at the first one, and NAME:full asks for NAME with every weight trained; \
             give another name, as NAME=DIR",
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Result<ModelArg> {
        from_args(vec![text.into()], &Env::for_testing(&[])).map(|mut m| m.remove(0))
    }

    #[test]
    fn a_directory_is_named_by_its_last_part_or_as_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qwen3=tiny");
        std::fs::create_dir(&path).unwrap();
        let text = path.to_str().unwrap();
        for given in [text.to_owned(), format!("{text}/")] {
            assert_eq!(
                model(&given).unwrap(),
                ModelArg { name: "qwen3=tiny".into(), source: ModelSource::Dir(given.into()) }
            );
        }
        let named = model(&format!("Qwen/Qwen3-8B={text}")).unwrap();
        assert_eq!(named, ModelArg { name: "Qwen/Qwen3-8B".into(), source: ModelSource::Dir(path) });
    }

    #[test]
    fn what_is_no_directory_may_be_a_hub_id() {
        let hub = |id: &str| ModelSource::Hub(id.into());
        assert_eq!(model("org/a-b.c_1").unwrap(), ModelArg { name: "org/a-b.c_1".into(), source: hub("org/a-b.c_1") });
        assert_eq!(model("x=org/name").unwrap(), ModelArg { name: "x".into(), source: hub("org/name") });
        for wrong in ["nothing", "/no/such/dir", "./no", "a/b/c", "../x", "x="] {
            assert!(model(wrong).unwrap_err().message.contains("no directory"), "{wrong}");
        }
    }

    #[test]
    fn names_are_checked() {
        for (wrong, why) in [
            ("=org/name", "the name \"\" is empty"),
            ("a b=org/name", "the name \"a b\" holds white space"),
            ("a:full=org/name", "the name \"a:full\" holds a colon: clients cut names at the first one"),
            ("v:1=org/name", "the name \"v:1\" holds a colon"),
        ] {
            let message = model(wrong).unwrap_err().message;
            assert!(message.contains(why), "{message}");
        }
        let twice = from_args(vec!["a=org/x".into(), "a=org/y".into()], &Env::for_testing(&[]));
        assert!(twice.unwrap_err().message.contains("\"a\" is given twice"));
    }

    #[test]
    fn none_says_how_to_give_one() {
        let message = from_args(vec![], &Env::for_testing(&[])).unwrap_err().message;
        assert!(message.contains("--model") && message.contains("tinderbox demo"), "{message}");
    }
}
