//! Losses traced by the client and run by the server (protocol ch. 15).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lenient;

/// `POST /create_custom_loss`: promise of [`CreateCustomLossResponse`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_custom_loss")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateCustomLossRequest {
    pub session_id: String,
    /// Slot in the session, from 0.
    pub custom_loss_seq_id: u64,
    /// The Python function's name.
    pub name: String,
    /// `logprobs` first, then the `loss_fn_inputs` it reads.
    pub inputs: Vec<CustomLossInput>,
    pub graph: CustomLossGraph,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CustomLossInput {
    pub name: String,
    /// 0 = scalar, 1 = (T,), 2 = (T, K).
    pub rank: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CustomLossGraph {
    /// 1 is the only format there is.
    pub format: u64,
    /// In execution order.
    pub nodes: Vec<CustomLossNode>,
}

/// A node as torch.fx records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CustomLossNode {
    /// `placeholder`, `call_function`, `call_method` or `output`.
    pub op: String,
    pub name: String,
    pub target: String,
    /// Scalars and lists stand for themselves; all else is an object with one key (`ref`, `tuple`, `dict`, `slice`,
    /// `ellipsis`, `float`, `dtype`, `device`, `layout`, `memory_format`).
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub args: Vec<Value>,
    #[serde(default, deserialize_with = "lenient::null_default")]
    pub kwargs: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_custom_loss")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateCustomLossResponse {
    pub loss_id: String,
}
