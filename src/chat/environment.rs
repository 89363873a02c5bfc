//! The Jinja that chat templates are written in: what Transformers gives them, within bounds of time and memory.

use std::fmt::Write;

use chrono::Local;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use super::python_json::{Style, dumps};

/// Steps that a template may take. Data it makes costs a step for each 64 bytes, so this bounds memory as well.
pub const FUEL: u64 = if cfg!(fuzzing) { 200_000 } else { 4_000_000 };

/// Without templates yet.
pub fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the delimiters are Jinja's own"));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env
}

/// The template without the marks that Transformers needs to find what the assistant said: they print nothing.
pub fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else { break };
        let inside = &rest[open + 2..open + length];
        out.push_str(&rest[..open]);
        match inside.trim_matches('-').trim() {
            word @ ("generation" | "endgeneration") => {
                // The dashes stay: they eat the blanks around the mark.
                let (left, right) = (inside.starts_with('-'), inside.ends_with('-'));
                let dash = |yes: bool| if yes { "-" } else { "" };
                let block = if word == "generation" { "if true" } else { "endif" };
                let _ = write!(out, "{{%{} {block} {}%}}", dash(left), dash(right));
            }
            _ => out.push_str(&rest[open..open + length + 2]),
        }
        rest = &rest[open + length + 2..];
    }
    out + rest
}

fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(levels) if levels.is_none() => None,
        Some(levels) => Some(" ".repeat(usize::try_from(levels)?.min(64))),
    };
    let mut style = indent.map_or_else(Style::one_line, Style::indented);
    style.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair of strings"))?;
        (style.item_separator, style.key_separator) = (item, key);
    }
    options.assert_all_used()?;
    dumps(value, &style)
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let mut out = String::new();
    write!(out, "{}", Local::now().format(format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {format:?} is not a format")))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, context: &str) -> Result<String, Error> {
        environment().render_str(source, serde_json::from_str::<Value>(context).unwrap())
    }

    #[test]
    fn blanks_around_blocks_are_trimmed_as_in_transformers() {
        assert_eq!(render("a\n  {% if x %}\n  b\n  {% endif %}\nc\n", r#"{"x":true}"#).unwrap(), "a\n  b\nc");
    }

    #[test]
    fn the_python_that_templates_lean_on() {
        let cases = [
            ("{{ x[::-1] }}", r#"{"x":[1,2]}"#, "[2, 1]"),
            ("{{ x[1:]|length }}{{ x[-1] }}", r#"{"x":[1,2,3]}"#, "23"),
            ("{{ 'a<t>b'.split('<t>')[-1].lstrip('b') }}|", "{}", "|"),
            ("{{ x.startswith('a') and x.endswith('c') }}", r#"{"x":"abc"}"#, "True"),
            ("{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}", r#"{"x":{"b":1,"a":null}}"#, "b=1;a=None;"),
            (
                "{% for i in x %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
                r#"{"x":[1,2,3,4,5]}"#,
                "13",
            ),
            (
                "{% set n = namespace(a=0) %}{% for i in x %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
                r#"{"x":[1,2]}"#,
                "3",
            ),
            (
                "{{ x.y is defined }}{{ z is none }}{{ x is mapping }}{{ 's' is string }}",
                r#"{"x":{},"z":null}"#,
                "FalseTrueTrueTrue",
            ),
            ("{{ x|tojson(indent=2) }}", r#"{"x":{"a":"é"}}"#, "{\n  \"a\": \"é\"\n}"),
            ("{% macro f(a, b='z') %}{{ a }}{{ b }}{% endmacro %}{{ f('y') }}", "{}", "yz"),
            ("{{ missing }}{% if missing %}x{% endif %}{{ ['a'] + ['b'] }}", "{}", "['a', 'b']"),
            (
                "{{ x|map(attribute='n')|join(',') }}{{ x|selectattr('n', 'equalto', 2)|list|length }}",
                r#"{"x":[{"n":1},{"n":2}]}"#,
                "1,21",
            ),
        ];
        for (source, context, want) in cases {
            assert_eq!(render(source, context).unwrap(), want, "{source}");
        }
    }

    #[test]
    fn a_template_can_refuse_and_tell_the_time() {
        let e = render("{{ raise_exception('roles must alternate') }}", "{}").unwrap_err().to_string();
        assert!(e.contains("roles must alternate"), "{e}");
        assert_eq!(render("{{ strftime_now('%Y')|length }}", "{}").unwrap(), "4");
        assert!(render("{{ strftime_now('%!') }}", "{}").is_err());
    }

    #[test]
    fn endless_templates_end() {
        let e =
            render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "{}").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutOfFuel);
        let doubling = "{% set n = namespace(x='0123456789abcdef') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
        assert_eq!(render(doubling, "{}").unwrap_err().kind(), ErrorKind::OutOfFuel);
    }

    #[test]
    fn generation_marks_vanish() {
        let source = "a {%- generation -%} b {% endgeneration %}{% if true %}c{% endif %}";
        assert_eq!(render(&without_generation_marks(source), "{}").unwrap(), "ab c");
        assert_eq!(without_generation_marks("{{ x }} {% unfinished"), "{{ x }} {% unfinished");
    }
}
