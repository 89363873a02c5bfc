//! The wire types, a file per family; server and client use the same structs (protocol ch. 3, 4, 6 to 8, 10).

pub mod audit;
pub mod billing;
pub mod checkpoints;
pub mod custom_loss;
pub mod datum;
pub mod futures;
pub mod items;
pub mod json_text;
pub mod lenient;
pub mod model_input;
pub mod sampling;
pub mod search;
pub mod service;
pub mod sessions;
pub mod tensor_data;
pub mod training;
pub mod uploads;
pub mod usage;
pub mod weights;
