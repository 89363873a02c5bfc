//! The OpenAPI document: every route with its types, answers and an example. A file per tag; `tinderbox openapi` prints
//! it, the server serves it as /openapi.json with a page to browse it at /docs.

mod account;
mod checkpoints;
mod examples;
mod foreign;
mod futures;
mod inference;
mod operation;
mod runs;
mod sampling;
mod schemas;
mod service;
mod sessions;
mod shaped;
mod training;
mod usage;
mod weights;

use std::collections::BTreeMap;

use axum::Router;
use serde_json::Value;
use tinderbox_client::types::service::ErrorBody;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, License, OpenApiBuilder, Paths};
use utoipa_swagger_ui::SwaggerUi;

use operation::{API_KEY, Operation, refusal};

const DESCRIPTION: &str = "The Tinker API as tinderbox serves it: create a training run, train it with \
    `forward_backward` and `optim_step`, sample from it, save it.\n\n\
    Requests that start work are answered at once with a promise, `{\"request_id\": …}`; `retrieve_future` waits for its \
    result. Requests on a run carry `seq_id`, which counts them from 1, and take effect in that order.\n\n\
    Errors are `{\"detail\": …}` with a status. Unknown fields are ignored, and `null` is the same as a field left out. \
    What belongs to another key does not exist: 404.\n\n\
    The examples belong together: sent in the order create a session, create a model, train, save, sample, they work on \
    a server with the model `Qwen/Qwen3-8B`, once the ids it gives out are put in place of the examples'.";

/// What a tag holds, in the order of a client's life.
type Section = (&'static str, &'static str, fn() -> Vec<Operation>);
const SECTIONS: &[Section] = &[
    ("service", "The server itself: settings for clients, health, the models served.", service::operations),
    ("account", "A key and what was done with it.", account::operations),
    ("sessions", "What a client opens first; everything it makes belongs to one.", sessions::operations),
    ("runs", "Training runs: create one, look at it, list them.", runs::operations),
    ("training", "The steps of a run, in the order of their `seq_id`.", training::operations),
    ("weights", "Save a run's weights, load them, ask what a checkpoint is made of.", weights::operations),
    ("sampling", "Samplers and the samples drawn from them.", sampling::operations),
    ("futures", "The results of requests that were answered with a promise.", futures::operations),
    ("usage", "What a key took, what it stores, how it goes.", usage::operations),
    ("inference", "OpenAI's and Anthropic's APIs: text in, text out.", inference::operations),
    ("checkpoints", "Saved weights: list, share, expire, delete, download.", checkpoints::operations),
];

/// Errors that many operations share.
const REFUSALS: &[(&str, &str)] = &[
    (
        "BadRequest",
        "Something in the request is wrong; the text names field, value and limit. Repeating it cannot help.",
    ),
    ("Unauthorized", "The header `X-API-Key` is missing, or its key is unknown."),
    ("Quota", "A quota of this key does not allow it; the text names limit and use, and what to free first."),
    ("NotFound", "What the request names does not exist, or belongs to another key."),
    ("TooLarge", "The body is larger than the server takes."),
    ("UnknownEncoding", "The `Content-Encoding` is neither absent nor `zstd`."),
    ("TooMany", "Too much of this key is waiting. Send the same request again later, with the same `seq_id`."),
    ("ServerError", "The server failed; the request may be fine. Its log says more."),
];

/// `/openapi.json` and the page at `/docs`, open to all.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    SwaggerUi::new("/docs").external_url_unchecked("/openapi.json", document()).into()
}

/// The whole document.
pub fn document() -> Value {
    let mut paths = Paths::new();
    let mut components = ComponentsBuilder::new().schema_from::<ErrorBody>();
    let (mut constants, mut taken) = (Vec::new(), Vec::new());
    let mut all: BTreeMap<String, _> = BTreeMap::new();
    for (tag, _, operations) in SECTIONS {
        for mut operation in operations() {
            operation.described.tags = Some(vec![(*tag).to_owned()]);
            paths.add_path_operation(operation.path, vec![operation.method], operation.described);
            for (name, schema) in operation.schemas {
                let same = all.insert(name.clone(), schema.clone()).is_none_or(|other| other == schema);
                assert!(same, "two types are called {name}: give one of them #[schema(as = …)]");
            }
            constants.extend(operation.constants);
            taken.extend(operation.takes);
        }
    }
    components = components.schemas_from_iter(all);
    for (name, text) in REFUSALS {
        components = components.response(*name, refusal(text));
    }
    let key = ApiKeyValue::with_description("X-API-Key", "A key of this server, beginning with `tml-`.");
    let components = components.security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(key)));
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".into());
    let info = InfoBuilder::new()
        .title("tinderbox")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(license));
    let tags = SECTIONS.iter().map(|(name, text, _)| TagBuilder::new().name(*name).description(Some(*text)).build());
    let document =
        OpenApiBuilder::new().info(info).paths(paths).components(Some(components.build())).tags(Some(tags)).build();
    let mut document = serde_json::to_value(document).expect("the document is JSON");
    schemas::finish(&mut document, &constants, &taken);
    document
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::body::Body;
    use axum::http::{Method, Request, StatusCode};
    use tower::ServiceExt;

    use super::*;
    use crate::api::{router, testing};

    /// `get /path` of every operation described.
    fn described() -> BTreeSet<String> {
        let document = document();
        let paths = document["paths"].as_object().unwrap().iter();
        paths.flat_map(|(path, item)| item.as_object().unwrap().keys().map(move |m| format!("{m} {path}"))).collect()
    }

    /// The paths a router has, as it shows itself to a debugger; no other view has them.
    fn paths(router: &Router) -> BTreeSet<String> {
        let shown = format!("{router:?}");
        let quoted = shown.split('"').skip(1).step_by(2).filter(|text| text.starts_with('/'));
        // The fallback, and the document itself.
        let others = |path: &str| path.contains("fallback") || path.starts_with("/docs");
        let routes = quoted.filter(|path| !others(path) && *path != "/openapi.json");
        // A wildcard is an ordinary segment to the document.
        routes.map(|path| path.replace("{*", "{")).collect()
    }

    #[tokio::test]
    async fn every_route_is_described_and_every_description_is_routed() {
        let (app, _engine) = testing::app().await;
        let router = router(app);
        let mut routed = BTreeSet::new();
        for path in paths(&router) {
            for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                // No key: routes that want one say so, and those that do not take the method say that first.
                let uri = path.replace(['{', '}'], "");
                let request = Request::builder().method(&method).uri(uri).body(Body::empty()).unwrap();
                if router.clone().oneshot(request).await.unwrap().status() != StatusCode::METHOD_NOT_ALLOWED {
                    routed.insert(format!("{} {path}", method.as_str().to_lowercase()));
                }
            }
        }
        let described = described();
        let missing: Vec<_> = routed.difference(&described).collect();
        assert!(missing.is_empty(), "not described in src/api/openapi/: {missing:?}");
        let stale: Vec<_> = described.difference(&routed).collect();
        assert!(stale.is_empty(), "described in src/api/openapi/, but not routed in src/api/mod.rs: {stale:?}");
    }

    #[test]
    fn every_operation_says_what_it_is_and_who_uses_it() {
        let document = document();
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for operation in item.as_object().unwrap().values() {
                for field in ["summary", "description", "operationId"] {
                    assert!(operation[field].as_str().is_some_and(|text| !text.is_empty()), "{path}: no {field}");
                }
                assert!(ids.insert(operation["operationId"].to_string()), "{path}: its operationId is taken");
            }
        }
        // A type alias hides its type's name from the derive, and all maps would become one.
        assert!(document["components"]["schemas"].get("BTreeMap").is_none(), "give the field a value_type");
    }
}
