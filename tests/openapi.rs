//! The OpenAPI document in the tree is the one the server serves.

use std::path::Path;

use serde_json::Value;

#[test]
fn the_kept_document_is_the_servers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json");
    let kept: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let served = tinderbox::api::openapi::document();
    let first = difference(&kept, &served, String::new());
    assert!(
        first.is_none(),
        "openapi/openapi.json differs at {}; write it anew: cargo run -- openapi > openapi/openapi.json",
        first.unwrap_or_default()
    );
}

/// Where two documents differ first.
fn difference(a: &Value, b: &Value, at: String) -> Option<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                let at = format!("{at}/{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => difference(a, b, at),
                    _ => Some(at),
                }
            })
        }
        _ => (a != b).then_some(at),
    }
}
