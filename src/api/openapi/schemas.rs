//! What derived schemas cannot say: that `null` is as good as absent, and fields that serde adds to a whole struct.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::operation::Constant;

/// `taken` are the names of the request bodies' schemas.
pub fn finish(document: &mut Value, constants: &[Constant], taken: &[String]) {
    let schemas = document["components"]["schemas"].as_object_mut().expect("the document has schemas");
    for name in reachable(schemas, taken) {
        if let Some(schema) = schemas.get_mut(&name) {
            allow_null(schema);
        }
    }
    for constant in constants {
        if let Some(schema) = schemas.get_mut(&constant.schema) {
            add(schema, constant);
        }
    }
    schemas.values_mut().for_each(plain);
}

/// Any of an untagged enum's forms may fit (an empty list is a list of anything), and links to Rust's items lead nowhere.
fn plain(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(forms) = map.remove("oneOf") {
                map.insert("anyOf".into(), forms);
            }
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = text.replace("[`", "`").replace("`]", "`").replace('\n', " ");
            }
            map.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

/// These schemas and all they refer to.
fn reachable(schemas: &Map<String, Value>, from: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = from.to_vec();
    while let Some(name) = open.pop() {
        if let Some(schema) = schemas.get(&name)
            && found.insert(name)
        {
            references(schema, &mut open);
        }
    }
    found
}

fn references(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                into.extend(target.strip_prefix("#/components/schemas/").map(str::to_owned));
            }
            map.values().for_each(|v| references(v, into));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, into)),
        _ => {}
    }
}

/// A request's field that may be left out may also be `null` (the wire types' rule: `types/lenient.rs`).
fn allow_null(schema: &mut Value) {
    for forms in ["oneOf", "allOf"] {
        schema.get_mut(forms).and_then(Value::as_array_mut).into_iter().flatten().for_each(allow_null);
    }
    let required = schema["required"].clone();
    let required = |field: &str| required.as_array().is_some_and(|r| r.iter().any(|name| name == field));
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (field, property) in properties.iter_mut().filter(|(field, _)| !required(field)) {
        let Some(object) = property.as_object_mut() else { continue };
        match object.get("type") {
            Some(Value::String(one)) => {
                let both = json!([one, "null"]);
                object.insert("type".into(), both);
            }
            // A list of types has its null, and no type at all admits it.
            Some(_) => {}
            None if object.contains_key("$ref") => {
                let description = object.remove("description");
                let target = Value::Object(std::mem::take(object));
                object.insert("oneOf".into(), json!([{ "type": "null" }, target]));
                object.extend(description.map(|text| ("description".to_owned(), text)));
            }
            None => debug_assert!(!object.contains_key("allOf"), "{field}: allOf with null is not handled"),
        }
    }
}

fn add(schema: &mut Value, constant: &Constant) {
    schema["properties"][&constant.field] = json!({ "type": "string", "enum": [constant.value] });
    let required = schema.as_object_mut().map(|s| s.entry("required").or_insert_with(|| json!([])));
    if let Some(Value::Array(names)) = required
        && !names.contains(&json!(constant.field))
    {
        names.push(json!(constant.field));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_of_requests_take_null_and_answers_stay() {
        let object = |field: Value| json!({ "type": "object", "properties": { "a": field, "b": { "type": "string" } }, "required": ["b"] });
        let mut document = json!({ "components": { "schemas": {
            "Asked": object(json!({ "$ref": "#/components/schemas/Inner", "description": "d" })),
            "Inner": object(json!({ "type": "integer" })),
            "Given": object(json!({ "type": "integer" })),
        } } });
        let kind = Constant { schema: "Given".into(), field: "type".into(), value: json!("given") };
        finish(&mut document, &[kind], &["Asked".to_owned()]);
        let schemas = &document["components"]["schemas"];
        assert_eq!(
            schemas["Asked"]["properties"]["a"],
            json!({ "anyOf": [{ "type": "null" }, { "$ref": "#/components/schemas/Inner" }], "description": "d" })
        );
        assert_eq!(schemas["Inner"]["properties"]["a"], json!({ "type": ["integer", "null"] }));
        assert_eq!(schemas["Inner"]["properties"]["b"], json!({ "type": "string" }));
        assert_eq!(schemas["Given"]["properties"]["a"], json!({ "type": "integer" }));
        assert_eq!(schemas["Given"]["properties"]["type"], json!({ "type": "string", "enum": ["given"] }));
        assert_eq!(schemas["Given"]["required"], json!(["b", "type"]));
    }
}
