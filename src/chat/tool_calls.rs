//! Calls of tools in a model's output, in the forms that templates teach.

use minijinja::value::{Value, ValueKind};

use super::python_json::{Style, dumps};
use super::template::Templates;

/// A call that the model made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

/// How a model marks its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call: Qwen, SmolLM2, Hermes. Inside the
    /// marks also Qwen3-Coder's `<function=name><parameter=key>value</parameter></function>`.
    Marked,
    /// The whole answer is `{"name": …, "parameters": {…}}`: Llama 3.
    Bare,
}

impl Format {
    /// The form that these templates show.
    pub fn of(templates: &Templates) -> Self {
        if !templates.mention("<tool_call>") && templates.mention("parameters") { Self::Bare } else { Self::Marked }
    }
}

/// The calls between two marks; `None` when it is something else.
pub fn marked(text: &str) -> Option<Vec<Call>> {
    let text = text.trim();
    if text.starts_with("<function=") {
        return functions(text);
    }
    let value: Value = serde_json::from_str(text).ok()?;
    match value.kind() {
        ValueKind::Seq => {
            let calls = value.try_iter().ok()?.map(|v| call(&v)).collect::<Option<Vec<Call>>>()?;
            (!calls.is_empty()).then_some(calls)
        }
        _ => Some(vec![call(&value)?]),
    }
}

/// The calls that a whole answer consists of, each of a tool in `names`; `None` when it is something else.
pub fn bare(text: &str, names: &[String]) -> Option<Vec<Call>> {
    let text = text.trim().trim_start_matches("<|python_tag|>");
    let mut calls = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let call = call(&stream.next()?.ok()?)?;
        if !names.contains(&call.name) {
            return None;
        }
        calls.push(call);
        rest = rest[stream.byte_offset()..].trim_start_matches(|c: char| c.is_whitespace() || c == ';');
    }
    (!calls.is_empty()).then_some(calls)
}

/// `{"name": …, "arguments": …}`. Arguments written as a string are JSON themselves; none are an empty object.
fn call(value: &Value) -> Option<Call> {
    let field = |name: &str| value.get_attr(name).ok().filter(|v| !v.is_undefined() && !v.is_none());
    let name = field("name")?.as_str()?.to_owned();
    let arguments = match field("arguments").or_else(|| field("parameters")) {
        None => return Some(Call { name, arguments: "{}".into() }),
        Some(text) if text.as_str().is_some() => serde_json::from_str(text.as_str()?).ok()?,
        Some(value) => value,
    };
    if arguments.kind() != ValueKind::Map {
        return None;
    }
    Some(Call { name, arguments: dumps(&arguments, &Style::one_line()).ok()? })
}

/// Qwen3-Coder's form. A value that is JSON is taken as such, any other as a string.
fn functions(text: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for function in text.split("<function=").skip(1) {
        let (name, body) = function.split_once('>')?;
        let body = body.split("</function>").next().unwrap_or(body);
        let mut arguments = Vec::new();
        for parameter in body.split("<parameter=").skip(1) {
            let (key, value) = parameter.split_once('>')?;
            let value = value.split("</parameter>").next().unwrap_or(value);
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.push((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::from(value))));
        }
        let arguments = dumps(&Value::from_pairs(arguments), &Style::one_line()).ok()?;
        calls.push(Call { name: name.trim().into(), arguments });
    }
    (!calls.is_empty()).then_some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call_of(name: &str, arguments: &str) -> Vec<Call> {
        vec![Call { name: name.into(), arguments: arguments.into() }]
    }

    #[test]
    fn marked_calls() {
        let want = call_of("f", r#"{"b": 1, "a": "é"}"#);
        assert_eq!(marked("\n{\"name\": \"f\", \"arguments\": {\"b\":1,\"a\":\"é\"}}\n").unwrap(), want);
        assert_eq!(marked(r#"[{"name":"f","arguments":{"b":1,"a":"é"}}]"#).unwrap(), want);
        assert_eq!(marked(r#"{"name":"f","arguments":"{\"b\":1,\"a\":\"é\"}"}"#).unwrap(), want);
        assert_eq!(marked(r#"{"name":"f"}"#).unwrap(), call_of("f", "{}"));
        for not_a_call in ["", "[]", "{", "hello", r#"{"arguments":{}}"#, r#"{"name":"f","arguments":[1]}"#] {
            assert_eq!(marked(not_a_call), None, "{not_a_call}");
        }
    }

    #[test]
    fn functions_with_parameters() {
        let text =
            "<function=f>\n<parameter=city>\nNew York\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>";
        assert_eq!(marked(text).unwrap(), call_of("f", r#"{"city": "New York", "days": 3}"#));
    }

    #[test]
    fn bare_calls_are_of_known_tools() {
        let names = ["f".to_owned()];
        let text = r#"{"name": "f", "parameters": {"x": 1}}"#;
        assert_eq!(bare(text, &names).unwrap(), call_of("f", r#"{"x": 1}"#));
        assert_eq!(bare(&format!("{text}; {text}"), &names).unwrap().len(), 2);
        assert_eq!(bare(r#"{"name": "g", "parameters": {}}"#, &names), None);
        assert_eq!(bare(r#"{"name": "f"} and so on"#, &names), None);
        assert_eq!(bare("", &names), None);
    }
}
