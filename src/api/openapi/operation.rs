//! One operation of the document in the words the files beside this one use: what goes in, what comes out, an example
//! of each. Examples are read and written through the wire types, so that they cannot drift from them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tinderbox_client::types::futures::UntypedApiFuture;
use tinderbox_client::types::service::ErrorBody;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::{self, HttpMethod, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{AnyOfBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{Content, ContentBuilder, Ref, RefOr, Required, Response, ResponseBuilder, Schema};
use utoipa::{IntoParams, ToSchema};

/// The name of the one way to show who one is.
pub const API_KEY: &str = "api_key";

pub const JSON: &str = "application/json";
pub const BYTES: &str = "application/octet-stream";
const PROTOBUF: &str = "application/x-protobuf";

/// Every operation that takes a body refuses these; each is a response of its own in the document.
pub const OF_BODIES: [(u16, &str); 3] = [(400, "BadRequest"), (413, "TooLarge"), (415, "UnknownEncoding")];

/// An operation with the schemas it mentions.
pub struct Operation {
    pub method: HttpMethod,
    pub path: String,
    pub described: path::Operation,
    /// Of all types in it, by name.
    pub schemas: Vec<(String, RefOr<Schema>)>,
    /// Fields that serde writes for a whole struct. In requests nobody looks at them.
    pub constants: Vec<Constant>,
    /// What its request body's schema is called.
    pub takes: Option<String>,
}

/// A field that a struct's `#[serde(tag)]` writes and that its derived schema therefore lacks.
pub struct Constant {
    pub schema: String,
    pub field: String,
    pub value: Value,
}

pub fn get(path: impl Into<String>, id: &str) -> Operation {
    Operation::new(HttpMethod::Get, path, id)
}

pub fn post(path: impl Into<String>, id: &str) -> Operation {
    Operation::new(HttpMethod::Post, path, id)
}

pub fn put(path: impl Into<String>, id: &str) -> Operation {
    Operation::new(HttpMethod::Put, path, id)
}

pub fn delete(path: impl Into<String>, id: &str) -> Operation {
    Operation::new(HttpMethod::Delete, path, id)
}

impl Operation {
    /// Needs a key, and may fail as anything may. The `id` is what generated clients call it.
    fn new(method: HttpMethod, path: impl Into<String>, id: &str) -> Self {
        let mut described = path::Operation::new();
        described.operation_id = Some(id.to_owned());
        described.security = Some(vec![SecurityRequirement::new(API_KEY, [""; 0])]);
        Self { method, path: path.into(), described, schemas: vec![], constants: vec![], takes: None }
            .refuses_as(401, "Unauthorized")
            .refuses_as(500, "ServerError")
    }

    /// A title, and what there is to know: which SDK method or command sends it, what it does, what it refuses.
    pub fn says(mut self, summary: &str, description: &str) -> Self {
        self.described.summary = Some(summary.to_owned());
        self.described.description = Some(description.to_owned());
        self
    }

    /// Needs no key.
    pub fn open(mut self) -> Self {
        self.described.security = Some(vec![SecurityRequirement::default()]);
        self.described.responses.responses.remove("401");
        self
    }

    /// A part of the path that may name something which is not there.
    pub fn segment(self, name: &str, description: &str, example: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::String).build();
        self.segment_of(name, description, schema, example)
    }

    /// A part of the path that is one of a few words.
    pub fn segment_one_of(self, name: &str, description: &str, words: &[&str], example: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.iter().copied())).build();
        self.segment_of(name, description, schema, example)
    }

    fn segment_of(mut self, name: &str, description: &str, schema: impl Into<RefOr<Schema>>, example: &str) -> Self {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(description))
            .schema(Some(schema))
            .example(Some(json!(example)));
        self.described.parameters.get_or_insert_default().push(parameter.build());
        self.refuses_as(400, "BadRequest").refuses_as(404, "NotFound")
    }

    pub fn query<T: IntoParams>(mut self) -> Self {
        let parameters = T::into_params(|| Some(ParameterIn::Query));
        self.described.parameters.get_or_insert_default().extend(parameters);
        self.refuses_as(400, "BadRequest")
    }

    /// A JSON body.
    pub fn takes<T: ToSchema + DeserializeOwned>(mut self, example: Value) -> Self {
        let name = T::name().into_owned();
        read::<T>(&name, &example);
        let schema = Ref::from_schema_name(&name);
        let content = ContentBuilder::new().schema(Some(schema)).example(Some(example)).build();
        let request = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.described.request_body = Some(request.build());
        self.schemas.extend(schemas::<T>(&name));
        self.takes = Some(name);
        OF_BODIES.into_iter().fold(self, |operation, (status, name)| operation.refuses_as(status, name))
    }

    /// The body may be left out, as may every field of it.
    pub fn or_no_body(mut self) -> Self {
        let request = self.described.request_body.take().unwrap_or_default();
        self.described.request_body = Some(RequestBodyBuilder::from(request).required(Some(Required::False)).build());
        self
    }

    /// The body may come as this protobuf message too.
    pub fn takes_protobuf(mut self, message: &str) -> Self {
        let request = self.described.request_body.take().unwrap_or_default();
        self.described.request_body =
            Some(RequestBodyBuilder::from(request).content(PROTOBUF, bytes(Some(message))).build());
        self
    }

    /// Something named in the body may not be there.
    pub fn may_miss(self) -> Self {
        self.refuses_as(404, "NotFound")
    }

    /// Starts work and answers with a promise of the result, or 429 while too much waits.
    pub fn promises(self, description: &str, example: Value) -> Self {
        self.gives::<UntypedApiFuture>(description, example).refuses_as(429, "TooMany")
    }

    /// Status 200 with a JSON body.
    pub fn gives<T: ToSchema + Serialize + DeserializeOwned>(self, description: &str, example: Value) -> Self {
        self.answers::<T>(200, description, example)
    }

    /// A JSON body under this status.
    pub fn answers<T: ToSchema + Serialize + DeserializeOwned>(
        mut self,
        status: u16,
        description: &str,
        example: Value,
    ) -> Self {
        let body = Typed::of::<T>(example);
        let content = ContentBuilder::new().schema(Some(body.reference())).example(Some(body.example.clone())).build();
        self.learn(body);
        self.respond(status, ResponseBuilder::new().description(description).content(JSON, content).build())
    }

    /// Status 200 with one of several JSON bodies, or a protobuf message.
    pub fn gives_one_of(mut self, description: &str, bodies: Vec<(&str, Typed)>, message: &str) -> Self {
        let mut any = AnyOfBuilder::new();
        let mut examples = Vec::new();
        for (name, body) in bodies {
            any = any.item(body.reference());
            examples.push((name, ExampleBuilder::new().value(Some(body.example.clone())).build()));
            self.learn(body);
        }
        let content = ContentBuilder::new().schema(Some(any)).examples_from_iter(examples).build();
        let response = ResponseBuilder::new().description(description).content(JSON, content);
        self.respond(200, response.content(PROTOBUF, bytes(Some(message))).build())
    }

    /// Status 200 with an empty JSON object.
    pub fn gives_nothing(self, description: &str) -> Self {
        let content = ContentBuilder::new().schema(Some(ObjectBuilder::new())).example(Some(json!({}))).build();
        self.respond(200, ResponseBuilder::new().description(description).content(JSON, content).build())
    }

    /// Status 200 with the bytes of a file, or the part of them that a header `Range` asks for.
    pub fn gives_file(self, description: &str) -> Self {
        let whole = ResponseBuilder::new().description(description);
        let part = ResponseBuilder::new().description("The part that the header `Range` asks for.");
        let none = ResponseBuilder::new().description("The header `Range` asks for no part of it.");
        self.respond(200, whole.content(BYTES, bytes(None)).build())
            .respond(206, part.content(BYTES, bytes(None)).build())
            .respond(416, none.content(BYTES, bytes(None)).build())
    }

    /// A status without a body.
    pub fn answers_blank(self, status: u16, description: &str) -> Self {
        self.respond(status, ResponseBuilder::new().description(description).build())
    }

    /// A quota may not allow it until something is freed.
    pub fn within_quota(self) -> Self {
        self.refuses_as(403, "Quota")
    }

    /// A refusal of its own kind.
    pub fn refuses(self, status: u16, description: &str) -> Self {
        self.respond(status, refusal(description))
    }

    pub fn refuses_as(mut self, status: u16, name: &str) -> Self {
        let response = RefOr::Ref(Ref::from_response_name(name));
        self.described.responses.responses.entry(status.to_string()).or_insert(response);
        self
    }

    /// This answer under this status.
    pub fn respond(mut self, status: u16, response: Response) -> Self {
        self.described.responses.responses.insert(status.to_string(), RefOr::T(response));
        self
    }

    fn learn(&mut self, body: Typed) {
        let constant = |(field, value)| Constant { schema: body.name.clone(), field, value };
        self.constants.extend(body.constants.into_iter().map(constant));
        self.schemas.extend(body.schemas);
    }
}

/// An error answer: a status and `{"detail": …}`.
pub fn refusal(description: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(ErrorBody::name()))).build();
    ResponseBuilder::new().description(description).content(JSON, content).build()
}

pub fn bytes(description: Option<&str>) -> Content {
    let binary =
        ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
    ContentBuilder::new().schema(Some(binary.description(description))).build()
}

/// The JSON body of an answer: its type's schema and an example.
pub struct Typed {
    name: String,
    schemas: Vec<(String, RefOr<Schema>)>,
    constants: Vec<(String, Value)>,
    example: Value,
}

impl Typed {
    pub fn of<T: ToSchema + Serialize + DeserializeOwned>(example: Value) -> Self {
        let name = T::name().into_owned();
        let written = serde_json::to_value(read::<T>(&name, &example)).expect("a wire type is JSON");
        let schema = serde_json::to_value(T::schema()).expect("a schema is JSON");
        let declared = |field: &str| schema["properties"].get(field).is_some();
        let is_struct = schema["type"] == "object";
        let fields = written.as_object().filter(|_| is_struct).into_iter().flatten();
        let constants = fields.filter(|(field, _)| !declared(field)).map(|(f, v)| (f.clone(), v.clone())).collect();
        Self { schemas: schemas::<T>(&name), name, constants, example }
    }

    fn reference(&self) -> Ref {
        Ref::from_schema_name(&self.name)
    }
}

/// The example as a value of its type. One that is none is a mistake in this folder, which every test shows.
pub fn read<T: DeserializeOwned>(name: &str, example: &Value) -> T {
    serde_json::from_value(example.clone()).unwrap_or_else(|e| panic!("the example of {name} is none: {e}"))
}

/// A type's schema and those it refers to.
fn schemas<T: ToSchema>(name: &str) -> Vec<(String, RefOr<Schema>)> {
    let mut all = vec![(name.to_owned(), T::schema())];
    T::schemas(&mut all);
    all
}
