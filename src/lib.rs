//! tinderbox: fine-tune language models through the open Tinker API. Modules in the order a request meets them.

pub mod command;
pub mod config;
pub mod error;
pub mod ids;

pub mod server;
pub mod api;
pub mod validate;
pub mod futures;
pub mod scheduler;
pub mod engine;
pub mod model;
pub mod loss;
pub mod sampling;
pub mod kernels;
pub mod tokenizer;
pub mod device;
pub mod checkpoint;
pub mod hub;
pub mod store;
