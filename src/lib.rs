//! tinderbox: fine-tune language models through the open Tinker API. The map is src/README.md.

pub mod command;
pub mod config;
pub mod error;
pub mod ids;

pub mod accounts;
pub mod api;
pub mod backup;
pub mod chat;
pub mod checkpoint;
pub mod device;
pub mod doctor;
pub mod engine;
pub mod futures;
pub mod hub;
pub mod kernels;
pub mod keys;
pub mod loss;
pub mod model;
pub mod recipes;
pub mod rollback;
pub mod sampling;
pub mod scheduler;
pub mod server;
pub mod start;
pub mod store;
pub mod tokenizer;
pub mod upload;
pub mod validate;
pub mod wal;
