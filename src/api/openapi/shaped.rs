//! Bodies that are no wire types: files, and answers described by the shape of an example.

use serde_json::Value;
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaType, Type, empty};
use utoipa::openapi::{Content, ContentBuilder, RefOr, Required, ResponseBuilder, Schema};

use super::operation::{BYTES, JSON, Operation, bytes};

impl Operation {
    /// The bytes of a file.
    pub fn takes_bytes(mut self, description: &str) -> Self {
        let request = RequestBodyBuilder::new().content(BYTES, bytes(Some(description)));
        self.described.request_body = Some(request.required(Some(Required::True)).build());
        self.refuses_as(413, "TooLarge")
    }

    /// Status 200 with a JSON object of the example's shape: every field is there, of this type; where the example has
    /// null, it may be anything.
    pub fn gives_like(self, description: &str, example: Value) -> Self {
        self.respond(200, ResponseBuilder::new().description(description).content(JSON, like(example)).build())
    }
}

pub fn like(example: Value) -> Content {
    ContentBuilder::new().schema(Some(shape(&example))).example(Some(example)).build()
}

/// Objects with the example's fields, arrays of its first item.
fn shape(example: &Value) -> Schema {
    let of = |kind| ObjectBuilder::new().schema_type(kind);
    match example {
        Value::Null => ObjectBuilder::new().schema_type(SchemaType::AnyValue).into(),
        Value::Bool(_) => of(Type::Boolean).into(),
        Value::Number(n) if n.is_f64() => of(Type::Number).into(),
        Value::Number(_) => of(Type::Integer).into(),
        Value::String(_) => of(Type::String).into(),
        Value::Array(items) => ArrayBuilder::new().items(RefOr::T(items.first().map_or_else(empty, shape))).into(),
        Value::Object(fields) => {
            let field = |object: ObjectBuilder, (name, value): (&String, &Value)| {
                object.property(name, shape(value)).required(name)
            };
            fields.iter().fold(of(Type::Object), field).into()
        }
    }
}
