//! All tests that need more than one module: numerics against a reference, the wire, the tree's own rules.
#![expect(clippy::unwrap_used, reason = "a test stops where something is missing")]

/// A backup of a server that trains and saves meanwhile, served again.
mod backup;
/// Chat templates and their token ids against Transformers'.
mod chat;
/// Custom losses against PyTorch's values, and those that are refused.
mod custom_loss;
/// What they follow on their way from the logprobs.
mod custom_loss_paths;
/// `tinderbox doctor` on sound and unsound installations and addresses.
mod doctor;
/// What outlives the engine, and runs whose numbers are not finite.
mod durability;
/// The engine through its handle: neighbours, order, failures.
mod engine;
/// Generations followed token by token, and across changes of weights.
mod generation;
/// The OpenAPI document in the tree.
mod openapi;
/// Logprobs and gradients of five architectures against PyTorch's.
mod parity;
/// `tinderbox serve` and other commands in processes of their own.
mod program;
/// Protobuf messages against bytes made by the SDK's own classes.
mod proto;
/// The conformance suite and bench drivers are unchanged copies.
mod shared_copies;
/// Shares of the device: floods, weights, reasons for waiting.
mod sharing;
/// Layering, file heads and lengths, banned words.
mod tidy;
