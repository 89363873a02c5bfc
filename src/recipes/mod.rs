//! Whole training loops as a user would write them: clients of the API, and of nothing else in this program.

pub mod addition;
pub mod advantage;
pub mod demo;
pub mod demo_model;
pub mod progress;
pub mod rl;
pub mod sft;
