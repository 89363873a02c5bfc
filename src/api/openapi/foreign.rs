//! Bodies as other companies' APIs want them: hand-written schemas for requests, errors in their own shape.

use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, RefOr, Required, ResponseBuilder, Schema};

use super::operation::{JSON, OF_BODIES, Operation, read};
use super::shaped::like;

/// What such an operation may be refused with, and why.
const REFUSALS: [(u16, &str); 7] = [
    (400, "Something in the request is wrong; the text names field, value and limit."),
    (401, "There is no key, or it is unknown."),
    (404, "There is no such model, or it belongs to another key."),
    (413, "The body is larger than the server takes."),
    (415, "The `Content-Encoding` is neither absent nor `zstd`."),
    (429, "Too much of this key is waiting. Send the same request again later."),
    (500, "The server failed; the request may be fine."),
];

impl Operation {
    /// A JSON body of this schema, which leaves out what the type reads besides.
    pub fn takes_like<T: DeserializeOwned>(mut self, schema: Value, example: Value) -> Self {
        read::<T>(std::any::type_name::<T>(), &example);
        let schema: Schema = serde_json::from_value(schema).expect("the schema is one");
        let content = ContentBuilder::new().schema(Some(schema)).example(Some(example)).build();
        let request = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.described.request_body = Some(request.build());
        OF_BODIES.into_iter().fold(self, |operation, (status, name)| operation.refuses_as(status, name))
    }

    /// Status 200 may also be a stream of server-sent events; the schema is that of one event.
    pub fn gives_events(mut self, description: &str) -> Self {
        if let Some(RefOr::T(response)) = self.described.responses.responses.get_mut("200") {
            let text = || ObjectBuilder::new().schema_type(Type::String);
            let event = ObjectBuilder::new().schema_type(Type::Object).description(Some(description));
            let event = event.property("event", text()).property("data", text()).required("data");
            response.content.insert("text/event-stream".into(), ContentBuilder::new().schema(Some(event)).build());
        }
        self
    }

    /// All refusals have this shape, and there may be too much waiting already.
    pub fn refuses_like(mut self, example: &Value) -> Self {
        self = self.refuses_as(404, "NotFound").refuses_as(429, "TooMany");
        let known =
            |operation: &Self, status: u16| operation.described.responses.responses.contains_key(&status.to_string());
        for (status, text) in REFUSALS {
            if known(&self, status) {
                let response = ResponseBuilder::new().description(text).content(JSON, like(example.clone()));
                self = self.respond(status, response.build());
            }
        }
        self
    }
}
