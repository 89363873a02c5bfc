//! Tag `training`: the steps of a run.

use serde_json::{Value, json};
use tinderbox_client::types::custom_loss::CreateCustomLossRequest;
use tinderbox_client::types::training::{ForwardBackwardRequest, ForwardRequest, OptimStepRequest};

use super::examples::{REQUEST, RUN, SESSION, promise};
use super::operation::{Operation, post};

pub fn operations() -> Vec<Operation> {
    vec![
        post("/api/v1/forward_backward", "forward_backward")
            .says(
                "Run datums forward and back",
                "`TrainingClient.forward_backward()`, `forward()` (with `forward_only`) and `forward_backward_custom()`. \
                 Gradients are added to the run's until `optim_step` uses them; the loss is a sum over all tokens, not \
                 a mean. Position t of `model_input` predicts `target_tokens[t]`.\n\n\
                 Losses: `cross_entropy`, `importance_sampling`, `ppo`, `cispo`, `dro`, `gspo`, `stable_reinforce`, and `custom` with the id of an uploaded one.\n\n\
                 Clients from 0.25 on send protobuf, older ones JSON; both mean the same. A body of either form may be \
                 packed with `Content-Encoding: zstd`.",
            )
            .takes::<ForwardBackwardRequest>(json!({
                "model_id": RUN, "seq_id": 1, "forward_only": false, "forward_backward_input": input(),
            }))
            .takes_protobuf("A message `tinker_public.ForwardBackwardRequest`.")
            .promises("A promise of the logprob of each target token, and metrics such as `loss:sum`.", promise())
            .may_miss(),
        post("/api/v1/optim_step", "optim_step")
            .says(
                "Change the weights",
                "`TrainingClient.optim_step()`: one step of AdamW with the gradients gathered so far, which are zero \
                 afterwards.",
            )
            .takes::<OptimStepRequest>(json!({
                "type": "optim_step", "model_id": RUN, "seq_id": 2,
                "adam_params": { "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
                                 "weight_decay": 0.0, "grad_clip_norm": 1.0 },
            }))
            .promises("A promise of metrics, such as the gradient's norm.", promise())
            .may_miss(),
        post("/api/v1/forward", "forward")
            .says(
                "Run datums forward only",
                "`TrainingClient.forward()` of clients up to 0.24; later ones use `forward_backward` with \
                 `forward_only`.",
            )
            .takes::<ForwardRequest>(json!({ "model_id": RUN, "seq_id": 3, "forward_input": input() }))
            .promises("A promise of the logprob of each target token, and metrics such as `loss:sum`.", promise())
            .may_miss(),
        post("/api/v1/create_custom_loss", "create_custom_loss")
            .says(
                "Upload a loss",
                "`TrainingClient.create_custom_loss()`: a Python function that the client traced with torch.fx. The \
                 server knows a list of operations and runs nothing else. It is kept as long as its session.",
            )
            .takes::<CreateCustomLossRequest>(json!({
                "type": "create_custom_loss", "session_id": SESSION, "custom_loss_seq_id": 0, "name": "likelihood",
                "inputs": [{ "name": "logprobs", "rank": 1 }],
                "graph": { "format": 1, "nodes": [
                    { "op": "placeholder", "name": "logprobs", "target": "logprobs", "args": [], "kwargs": {} },
                    { "op": "call_method", "name": "total", "target": "sum", "args": [{ "ref": "logprobs" }], "kwargs": {} },
                    { "op": "call_function", "name": "loss", "target": "operator.neg", "args": [{ "ref": "total" }], "kwargs": {} },
                    { "op": "output", "name": "output", "target": "output", "args": [{ "tuple": [{ "ref": "loss" }, { "dict": {} }] }], "kwargs": {} },
                ] },
            }))
            .promises("A promise of `{\"type\": \"create_custom_loss\", \"loss_id\": …}`.", json!({ "request_id": REQUEST }))
            .may_miss(),
    ]
}

/// One datum of four tokens, of which the last three targets count.
fn input() -> Value {
    json!({
        "loss_fn": "cross_entropy",
        "data": [{
            "model_input": { "chunks": [{ "type": "encoded_text", "tokens": [11, 12, 13, 14] }] },
            "loss_fn_inputs": {
                "target_tokens": { "data": [12, 13, 14, 15], "dtype": "int64", "shape": [4] },
                "weights": { "data": [0.0, 1.0, 1.0, 1.0], "dtype": "float32", "shape": [4] },
            },
        }],
    })
}
