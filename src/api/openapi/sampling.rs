//! Tag `sampling`: samplers and the samples drawn from them.

use serde_json::json;
use tinderbox_client::types::sampling::{
    CreateSamplingSessionRequest, CreateSamplingSessionResponse, GetSamplerResponse, GetSequenceResponse,
    JoinSamplingSessionRequest, JoinSamplingSessionResponse, SampleRequest,
};

use super::examples::{MODEL, REQUEST, SAMPLER, SESSION};
use super::operation::{Operation, get, post};

pub fn operations() -> Vec<Operation> {
    vec![
        post("/api/v1/create_sampling_session", "create_sampling_session")
            .says(
                "Create a sampler",
                "`ServiceClient.create_sampling_client()`. `model_path` is a checkpoint \
                 `tinker://RUN/sampler_weights/NAME` or `tinker://RUN/weights/NAME`; without it the base model is \
                 sampled. The same request again is the same sampler.",
            )
            .takes::<CreateSamplingSessionRequest>(json!({
                "type": "create_sampling_session", "session_id": SESSION, "sampling_session_seq_id": 0,
                "base_model": MODEL,
            }))
            .gives::<CreateSamplingSessionResponse>(
                "The sampler's id.",
                json!({ "type": "create_sampling_session", "sampling_session_id": SAMPLER }),
            )
            .may_miss(),
        post("/api/v1/join_sampling_session", "join_sampling_session")
            .says(
                "Sample from another process",
                "Sent by a `SamplingClient` that was pickled: it gets a number of its own, from which it makes its \
                 `seq_id`s.",
            )
            .takes::<JoinSamplingSessionRequest>(json!({ "type": "join_sampling_session", "sampling_session_id": SAMPLER }))
            .gives::<JoinSamplingSessionResponse>(
                "A number that no other process has.",
                json!({ "type": "join_sampling_session", "client_counter": 1 }),
            )
            .may_miss(),
        get("/api/v1/samplers/{sampler_id}", "get_sampler")
            .says("One sampler", "`RestClient.get_sampler()`.")
            .segment("sampler_id", "The sampler's id.", SAMPLER)
            .gives::<GetSamplerResponse>("What it samples from.", json!({ "sampler_id": SAMPLER, "base_model": MODEL })),
        get("/api/v1/sequences/{sequence_id}", "get_sequence")
            .says(
                "One sampled sequence",
                "An addition to the protocol: a finished sequence by one of `sample_sequence_ids`, with the version of \
                 the weights behind each token, as long as its request's result is kept.",
            )
            .segment("sequence_id", "One of the ids that `asample` gave out.", "0a4c1f5e-6f2b-4d7a-9c3e-1b2d3f4a5c6d:sample:0:0:0")
            .gives::<GetSequenceResponse>(
                "Its tokens and where they came from.",
                json!({
                    "sequence_id": format!("{SAMPLER}:0:0"), "sampler_id": SAMPLER, "base_model": MODEL,
                    "stop_reason": "length", "tokens": [14, 15], "logprobs": [-1.5, -0.5], "weight_versions": [0, 0],
                }),
            ),
        post("/api/v1/asample", "asample")
            .says(
                "Draw samples",
                "`SamplingClient.sample()` and `compute_logprobs()`. Logprobs are those of the distribution after \
                 `temperature`, before `top_k` and `top_p`. A seed gives the same tokens whatever else the server does; \
                 a sample ends with the token that completed its stop. At most 4096 samples a request, unless the server \
                 is set otherwise (`TINDERBOX_MAX_NUM_SAMPLES`).",
            )
            .takes::<SampleRequest>(json!({
                "type": "sample", "sampling_session_id": SAMPLER, "seq_id": 0, "num_samples": 2,
                "prompt": { "chunks": [{ "type": "encoded_text", "tokens": [11, 12, 13] }] },
                "sampling_params": { "max_tokens": 8, "seed": 7, "temperature": 1.0, "top_p": 0.95 },
                "prompt_logprobs": true,
            }))
            .promises(
                "A promise of the samples, each named in advance.",
                json!({
                    "request_id": REQUEST,
                    "sample_sequence_ids": [format!("{SAMPLER}:0:0"), format!("{SAMPLER}:0:1")],
                }),
            )
            .may_miss(),
    ]
}
