//! From wire types to commands: everything a user can get wrong is found here and named.

pub mod loss;
pub mod runs;
pub mod sampling;
pub mod tokens;
pub mod training;
pub mod weights;
