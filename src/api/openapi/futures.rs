//! Tag `futures`: the results of requests that were answered with a promise.

use serde_json::json;
use tinderbox_client::types::custom_loss::CreateCustomLossResponse;
use tinderbox_client::types::futures::{
    CancelFutureRequest, RequestFailedResponse, RetrieveFutureRequest, RetrieveFuturesRequest, RetrieveFuturesResponse,
    TryAgainResponse,
};
use tinderbox_client::types::sampling::SampleResponse;
use tinderbox_client::types::training::{
    CreateModelResponse, ForwardBackwardOutput, OptimStepResponse, UnloadModelResponse,
};
use tinderbox_client::types::weights::{
    LoadWeightsResponse, SaveWeightsExternalResponse, SaveWeightsForSamplerResponse, SaveWeightsResponse,
};

use super::examples::{CHECKPOINT, EXPORT, REQUEST, RUN, SAMPLER, SAMPLER_CHECKPOINT, SECOND_RUN};
use super::operation::{Operation, Typed, post};

pub fn operations() -> Vec<Operation> {
    vec![
        post("/api/v1/retrieve_future", "retrieve_future")
            .says(
                "Wait for a result",
                "What every `.result()` and `await` of the SDK does. The request is held until the result is there, up \
                 to 30 seconds (`TINDERBOX_LONG_POLL_SECONDS`), or 10 seconds less than the header \
                 `x-stainless-read-timeout` says; then it is answered with 408 and should be sent again.\n\n\
                 Samples and the results of `forward_backward` come as protobuf if the header `Accept` names \
                 `application/x-protobuf`. Work that failed is a 200 with `error` and who has to act.",
            )
            .takes::<RetrieveFutureRequest>(json!({ "request_id": REQUEST }))
            .gives_one_of(
                "The result, or why there is none.",
                results(),
                "A message `tinker_public.SampleResponse` or `tinker_public.ForwardBackwardOutput`.",
            )
            .answers::<TryAgainResponse>(
                408,
                "Not done yet; ask again.",
                json!({ "type": "try_again", "request_id": REQUEST, "queue_state": "active" }),
            )
            .refuses(410, "The promise is unknown: it expired, or the server was restarted since."),
        post("/api/v1/retrieve_futures", "retrieve_futures")
            .says(
                "News of many samples",
                "Sent by a `SamplingClient` when the server's settings ask for it. Held until there is news, or answered \
                 at once when `timeout` is 0; what it names is then fetched by `retrieve_future`.",
            )
            .takes::<RetrieveFuturesRequest>(json!({
                "target": { "type": "sampling_session", "sampling_session_id": SAMPLER, "cloned_sampler_id": 0 },
                "prev_cursor": 0, "timeout": 0.0, "retrieved_request_ids": [],
            }))
            .gives::<RetrieveFuturesResponse>(
                "What ended since the cursor.",
                json!({ "completions": [{ "state": "finished", "request_id": REQUEST }], "cursor": 1 }),
            )
            .may_miss(),
        post("/api/v1/cancel_future", "cancel_future")
            .says(
                "Give up a sample",
                "Sent by a `SamplingClient` whose caller has gone away. Other work runs on; an id that is unknown or \
                 done is fine.",
            )
            .takes::<CancelFutureRequest>(json!({ "request_id": REQUEST }))
            .gives_nothing("The sample, if it was one, is stopped."),
    ]
}

/// Each kind of result once.
fn results() -> Vec<(&'static str, Typed)> {
    let logprobs = json!({ "data": [-2.5, -1.25], "dtype": "float32", "shape": [2] });
    vec![
        ("create_model", Typed::of::<CreateModelResponse>(json!({ "type": "create_model", "model_id": RUN }))),
        (
            "forward_backward",
            Typed::of::<ForwardBackwardOutput>(json!({
                "loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": [{ "logprobs": logprobs }],
                "metrics": { "loss:sum": 3.75 },
            })),
        ),
        ("optim_step", Typed::of::<OptimStepResponse>(json!({ "metrics": { "grad_norm": 0.5 } }))),
        ("save_weights", Typed::of::<SaveWeightsResponse>(json!({ "type": "save_weights", "path": CHECKPOINT }))),
        (
            "save_weights_for_sampler",
            Typed::of::<SaveWeightsForSamplerResponse>(
                json!({ "type": "save_weights_for_sampler", "path": SAMPLER_CHECKPOINT }),
            ),
        ),
        (
            "save_weights_external",
            Typed::of::<SaveWeightsExternalResponse>(
                json!({ "type": "save_weights_external", "path": EXPORT, "size_bytes": 123_456 }),
            ),
        ),
        (
            "load_weights",
            Typed::of::<LoadWeightsResponse>(
                json!({ "type": "load_weights", "model_id": SECOND_RUN, "path": CHECKPOINT }),
            ),
        ),
        (
            "asample",
            Typed::of::<SampleResponse>(json!({
                "type": "sample", "prompt_cache_hit_tokens": 0, "prompt_logprobs": [null, -3.5, -0.25],
                "sequences": [{ "stop_reason": "length", "tokens": [14, 15], "logprobs": [-1.5, -0.5] }],
            })),
        ),
        ("unload_model", Typed::of::<UnloadModelResponse>(json!({ "type": "unload_model", "model_id": SECOND_RUN }))),
        (
            "create_custom_loss",
            Typed::of::<CreateCustomLossResponse>(json!({ "type": "create_custom_loss", "loss_id": "loss-1" })),
        ),
        ("failed", Typed::of::<RequestFailedResponse>(json!({ "error": "what was wrong", "category": "user" }))),
    ]
}
