//! Custom losses traced by a client (protocol ch. 15): a graph of torch operations, checked once against a list of what
//! is allowed, then evaluated per datum in f64 with its derivative. Nothing of it is ever executed as code.

mod args;
mod binary;
mod bind;
mod compile;
mod create;
mod distance;
mod einsum;
mod eval;
mod functional;
pub mod graph;
mod join;
mod layout;
mod lines;
mod ops;
mod products;
mod program;
mod python;
mod reduce;
mod scatter;
mod select;
mod shape;
mod tape;
mod unary;
mod value;

pub use compile::compile;
pub use ops::{name_of, operations};
pub use program::Program;
