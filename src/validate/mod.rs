//! From wire types to commands: everything a user can get wrong is found here and named.

pub mod billing;
pub mod custom_loss;
mod expansion;
pub mod loss;
pub mod metadata;
pub mod runs;
pub mod sampling;
pub mod sdk_version;
mod stop;
pub mod tokens;
pub mod training;
pub mod weights;
