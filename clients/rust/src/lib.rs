//! The Tinker API in Rust: wire types, protobuf messages, and an async client on top of them.

pub mod types;

pub mod convert;
pub mod proto;

mod chunking;
mod combine;
mod custom;
pub mod error;
pub mod future;
mod login;
pub mod rest;
pub mod sampling;
pub mod service;
mod session;
pub mod training;
mod transport;

pub use error::{Error, Result};
pub use future::ApiFuture;
pub use rest::RestClient;
pub use sampling::SamplingClient;
pub use service::{ClientOptions, FromState, ServiceClient};
pub use training::{Loss, SaveOptions, TrainingClient};
