//! Protobuf message ↔ wire type, for both sides: server and client reason about one set of types.

pub mod arrays;
pub mod output;
pub mod request;
pub mod sample;
pub mod tensor;

/// A protobuf message that cannot mean anything; says where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

impl ConvertError {
    /// The same error with where it happened in front.
    pub fn at(self, place: impl std::fmt::Display) -> Self {
        Self(format!("{place}: {}", self.0))
    }
}
