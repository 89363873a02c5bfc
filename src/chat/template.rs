//! A model's chat templates: where they lie in its directory, which one a conversation takes, and its text.

use std::collections::BTreeMap;
use std::path::Path;

use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind};
use serde_json::Value as Json;

use super::conversation::Conversation;
use super::environment::{FUEL, environment, without_generation_marks};
use crate::error::{Error, Result};

/// The tokens that templates know by name, as `tokenizer_config.json` or `special_tokens_map.json` spell them.
const NAMED_TOKENS: &[&str] =
    &["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Compiled templates and the tokens they use.
pub struct Templates {
    environment: Environment<'static>,
    /// Source by name; `default` and perhaps `tool_use`.
    sources: BTreeMap<String, String>,
    tokens: BTreeMap<String, Value>,
}

impl Templates {
    /// Those of a model's directory: `chat_template.jinja` (with `additional_chat_templates/`), `chat_template` in
    /// `tokenizer_config.json`, or `chat_template.json`, the first that exists. `None` when there is none.
    ///
    /// # Errors
    /// A server error for files that cannot be read and templates that are not Jinja.
    pub fn load(dir: &Path) -> Result<Option<Self>> {
        let config = json(&dir.join("tokenizer_config.json"))?;
        let map = json(&dir.join("special_tokens_map.json"))?;
        let sources = match jinja_files(dir)? {
            files if !files.is_empty() => files,
            _ => match &config["chat_template"] {
                Json::Null => named(&json(&dir.join("chat_template.json"))?["chat_template"]),
                template => named(template),
            },
        };
        if sources.is_empty() {
            return Ok(None);
        }
        let tokens = NAMED_TOKENS.iter().filter_map(|name| {
            let text = token_text(&config[name]).or_else(|| token_text(&map[name]))?;
            Some(((*name).to_owned(), Value::from(text)))
        });
        Self::compile(sources, tokens.collect()).map(Some)
    }

    pub(super) fn compile(sources: BTreeMap<String, String>, tokens: BTreeMap<String, Value>) -> Result<Self> {
        let mut environment = environment();
        for (name, source) in &sources {
            environment
                .add_template_owned(name.clone(), without_generation_marks(source))
                .map_err(|e| Error::server(format!("chat template {name:?} is not usable: {e}")))?;
        }
        Ok(Self { environment, sources, tokens })
    }

    /// Whether any of the templates says `word`.
    pub fn mention(&self, word: &str) -> bool {
        self.sources.values().any(|source| source.contains(word))
    }

    /// The text of the conversation, as `apply_chat_template(tokenize=False)` gives it.
    ///
    /// # Errors
    /// A user error with the template's own words, such as those of `raise_exception`.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        let tools = (!conversation.tools.is_empty()).then_some(&conversation.tools);
        let name = if tools.is_some() && self.sources.contains_key("tool_use") { "tool_use" } else { "default" };
        let template = self.environment.get_template(name).map_err(|_| {
            let names: Vec<&str> = self.sources.keys().map(String::as_str).collect();
            Error::user(format!("the model has chat templates named {} and none named default", names.join(", ")))
        })?;
        let mut context = self.tokens.clone();
        context.extend(conversation.variables.iter().map(|(name, value)| (name.clone(), value.clone())));
        context.insert("messages".into(), Value::from(Serde(&conversation.messages)));
        context.insert("tools".into(), Value::from(Serde(tools)));
        context.insert("documents".into(), Value::from(()));
        context.insert("add_generation_prompt".into(), Value::from(!conversation.continue_final_message));
        let text = template.render(Value::from(context)).map_err(|e| refusal(&e))?;
        if conversation.continue_final_message { conversation.cut_behind_final_message(text) } else { Ok(text) }
    }
}

fn refusal(e: &minijinja::Error) -> Error {
    if e.kind() == ErrorKind::OutOfFuel {
        return Error::user(format!("these messages take the model's chat template more than {FUEL} steps, the limit"));
    }
    let detail = e.detail().map_or_else(|| e.to_string(), str::to_owned);
    Error::user(format!("the model's chat template does not take these messages: {detail}"))
}

fn json(path: &Path) -> Result<Json> {
    match std::fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Json::Null),
        Err(e) => Err(Error::from(e).context(path.display())),
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| Error::server(format!("{}: {e}", path.display()))),
    }
}

fn jinja_files(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let main = dir.join("chat_template.jinja");
    if main.is_file() {
        found.insert("default".to_owned(), std::fs::read_to_string(&main)?);
    }
    let more = dir.join("additional_chat_templates");
    if more.is_dir() {
        for entry in std::fs::read_dir(&more)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "jinja")
                && let Some(name) = path.file_stem().and_then(|n| n.to_str())
            {
                found.insert(name.to_owned(), std::fs::read_to_string(&path)?);
            }
        }
    }
    Ok(found)
}

/// One template, or a list of `{"name": …, "template": …}`.
fn named(template: &Json) -> BTreeMap<String, String> {
    let text = |value: &Json| value.as_str().map(str::to_owned);
    match template {
        Json::String(source) => BTreeMap::from([("default".to_owned(), source.clone())]),
        Json::Array(list) => list.iter().filter_map(|t| Some((text(&t["name"])?, text(&t["template"])?))).collect(),
        _ => BTreeMap::new(),
    }
}

/// A token is its text or an object that holds it.
pub(super) fn token_text(token: &Json) -> Option<String> {
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

/// The text of the token that ends a turn of this tokenizer.
pub(super) fn eos_token(dir: &Path) -> Result<Option<String>> {
    let in_file = |name: &str| Ok::<_, Error>(token_text(&json(&dir.join(name))?["eos_token"]));
    Ok(in_file("tokenizer_config.json")?.or(in_file("special_tokens_map.json")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::conversation::Message;

    fn user(text: &str) -> Conversation {
        Conversation { messages: vec![Message::new("user", text)], ..Conversation::default() }
    }

    fn loaded(files: &[(&str, &str)]) -> Option<Templates> {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        Templates::load(dir.path()).unwrap()
    }

    #[test]
    fn every_place_of_a_template_and_their_order() {
        let config = r#"{"chat_template": "config {{ bos_token }}{{ eos_token }}", "bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;
        let only_config = loaded(&[("tokenizer_config.json", config)]).unwrap();
        assert_eq!(only_config.render(&user("x")).unwrap(), "config <s></s>");
        let json = r#"{"chat_template": "json"}"#;
        assert_eq!(loaded(&[("chat_template.json", json)]).unwrap().render(&user("x")).unwrap(), "json");
        let both = [("tokenizer_config.json", config), ("chat_template.json", json)];
        assert_eq!(loaded(&both).unwrap().render(&user("x")).unwrap(), "config <s></s>");
        let jinja = [("chat_template.jinja", "file {{ bos_token }}"), ("tokenizer_config.json", config)];
        assert_eq!(loaded(&jinja).unwrap().render(&user("x")).unwrap(), "file <s>");
        assert!(loaded(&[("tokenizer_config.json", "{}")]).is_none());
    }

    #[test]
    fn tools_take_the_template_made_for_them() {
        let list = r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools|length }} tools"}]}"#;
        let templates = loaded(&[("tokenizer_config.json", list)]).unwrap();
        assert_eq!(templates.render(&user("x")).unwrap(), "plain");
        let with_tools = Conversation { tools: vec![Value::from("a")], ..user("x") };
        assert_eq!(templates.render(&with_tools).unwrap(), "1 tools");
        let only_tools = r#"{"chat_template": [{"name": "tool_use", "template": "x"}]}"#;
        let e = loaded(&[("tokenizer_config.json", only_tools)]).unwrap().render(&user("x")).unwrap_err();
        assert!(e.message.contains("tool_use"), "{e}");
    }

    #[test]
    fn what_a_template_refuses_is_the_users_fault_in_its_words() {
        let refusing = loaded(&[("chat_template.jinja", "{{ raise_exception('only system') }}")]).unwrap();
        let e = refusing.render(&user("x")).unwrap_err();
        assert!(e.message.contains("only system") && e.wire_category() == "user", "{e}");
        let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
        let e = loaded(&[("chat_template.jinja", endless)]).unwrap().render(&user("x")).unwrap_err();
        assert!(e.message.contains("4000000 steps"), "{e}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("chat_template.jinja"), "{% if %}").unwrap();
        assert!(Templates::load(dir.path()).err().unwrap().message.contains("not usable"));
    }
}
