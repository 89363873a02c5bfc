//! Tag `weights`: save a run's weights, load them, ask what a checkpoint is made of.

use serde_json::json;
use tinderbox_client::types::checkpoints::{
    CopyWeightsRequest, CopyWeightsResponse, WeightsInfoRequest, WeightsInfoResponse,
};
use tinderbox_client::types::uploads::{
    ExternalWeightsUploadFinishRequest, ExternalWeightsUploadFinishResponse, ExternalWeightsUploadStartRequest,
    ExternalWeightsUploadStartResponse,
};
use tinderbox_client::types::weights::{
    LoadWeightsRequest, SaveWeightsExternalRequest, SaveWeightsForSamplerRequest, SaveWeightsRequest,
};

use super::examples::{CHECKPOINT, MODEL, REQUEST, RUN, SECOND_RUN, SESSION, TIME, promise};
use super::operation::{Operation, post, put};

pub fn operations() -> Vec<Operation> {
    let mut all = saves();
    all.extend(loads());
    all.extend(brought());
    all
}

fn saves() -> Vec<Operation> {
    vec![
        post("/api/v1/save_weights", "save_weights")
            .says(
                "Save weights and optimiser",
                "`TrainingClient.save_state()`: a checkpoint `tinker://RUN/weights/NAME` from which training can go on. \
                 Without `path` its name is the request's number. A name that exists is refused unless `overwrite` is \
                 true.",
            )
            .takes::<SaveWeightsRequest>(json!({
                "type": "save_weights", "model_id": RUN, "seq_id": 4, "path": "step-1", "overwrite": true,
                "user_metadata": { "note": "before the weekend" },
            }))
            .promises("A promise of `{\"type\": \"save_weights\", \"path\": \"tinker://…\"}`.", promise())
            .within_quota()
            .may_miss(),
        post("/api/v1/save_weights_for_sampler", "save_weights_for_sampler")
            .says(
                "Save weights to sample from",
                "`TrainingClient.save_weights_for_sampler()` sends `path`: a checkpoint \
                 `tinker://RUN/sampler_weights/NAME`, which replaces one of the same name. \
                 `save_weights_and_get_sampling_client()` sends `sampling_session_seq_id`: a sampler of the session over \
                 the weights as they are now, without a checkpoint. Exactly one of the two must be given.",
            )
            .takes::<SaveWeightsForSamplerRequest>(json!({
                "type": "save_weights_for_sampler", "model_id": RUN, "seq_id": 5, "path": "step-1",
            }))
            .promises(
                "A promise of `{\"type\": \"save_weights_for_sampler\"}` with `path` or `sampling_session_id`.",
                promise(),
            )
            .within_quota()
            .may_miss(),
        post("/api/v1/save_weights_external", "save_weights_external")
            .says(
                "Save weights for download",
                "`TrainingClient.save_weights_external()`: files in PEFT's layout (Transformers' for a full model) under \
                 `tinker://RUN/external_weights/NAME`, encrypted for the recipients if any are named. Get them with \
                 `external_weights_urls`.",
            )
            .takes::<SaveWeightsExternalRequest>(json!({
                "type": "save_weights_external", "model_id": RUN, "seq_id": 6, "path": "export", "ttl_seconds": 86400,
            }))
            .promises("A promise of `{\"type\": \"save_weights_external\", \"path\": …, \"size_bytes\": …}`.", promise())
            .within_quota()
            .may_miss(),
    ]
}

fn loads() -> Vec<Operation> {
    vec![
        post("/api/v1/load_weights", "load_weights")
            .says(
                "Load a training checkpoint",
                "With `session_id` and `model_seq_id` a new run begins with the checkpoint's weights: \
                 `ServiceClient.create_training_client_from_state()`, and with `optimizer` also \
                 `…_with_optimizer()`. With `model_id` and `seq_id` the weights go into a run there is: \
                 `TrainingClient.load_state()`. The checkpoint may be another key's if it is published.",
            )
            .takes::<LoadWeightsRequest>(json!({
                "type": "load_weights", "session_id": SESSION, "model_seq_id": 1, "path": CHECKPOINT, "optimizer": true,
            }))
            .promises(
                "A promise of `{\"type\": \"load_weights\", \"model_id\": …, \"path\": …}`.",
                json!({ "request_id": REQUEST, "model_id": SECOND_RUN }),
            )
            .within_quota()
            .may_miss(),
        post("/api/v1/weights_info", "weights_info")
            .says(
                "What a checkpoint is made of",
                "`RestClient.get_weights_info_by_tinker_path()`; also asked by cookbook recipes before they load one.",
            )
            .takes::<WeightsInfoRequest>(json!({ "tinker_path": CHECKPOINT }))
            .gives::<WeightsInfoResponse>(
                "Its base model and adapter.",
                json!({
                    "base_model": MODEL, "is_lora": true, "lora_rank": 16, "train_unembed": true, "train_mlp": true,
                    "train_attn": true, "optimizer_config": { "type": "adamw" },
                }),
            )
            .may_miss(),
    ]
}

fn brought() -> Vec<Operation> {
    vec![
        post("/api/v1/copy_weights", "copy_weights")
            .says(
                "Copy a checkpoint",
                "`RestClient.copy_weights()`. A new run of the caller's holds the copy: in a project, or in a session's \
                 slot. The checkpoint may be another key's if it is published.",
            )
            .takes::<CopyWeightsRequest>(json!({ "source_path": CHECKPOINT, "destination_project_id": "my-project" }))
            .gives::<CopyWeightsResponse>("The copy.", json!({ "tinker_path": CHECKPOINT }))
            .within_quota()
            .may_miss(),
        post("/api/v1/external_weights_upload_start", "external_weights_upload_start")
            .says(
                "Bring an adapter trained elsewhere",
                "`RestClient.upload_external_weights()`: announce the files of a PEFT adapter, send each to its link, \
                 finish.",
            )
            .takes::<ExternalWeightsUploadStartRequest>(json!({
                "name": "brought", "base_model": MODEL,
                "files": [{ "name": "adapter_config.json", "size_bytes": 2 }, { "name": "adapter_model.safetensors", "size_bytes": 2 }],
            }))
            .gives::<ExternalWeightsUploadStartResponse>(
                "A link for each file, which needs no key.",
                json!({
                    "upload_id": "UPLOAD_ID", "expires": TIME,
                    "urls": { "adapter_config.json": "http://127.0.0.1:8000/api/v1/upload/TOKEN/adapter_config.json" },
                }),
            )
            .within_quota(),
        put("/api/v1/upload/{token}/{file}", "upload")
            .says("A file of an upload", "Needs no key: the token in the link is the permission.")
            .open()
            .segment("token", "From a link.", "UPLOAD_TOKEN")
            .segment("file", "The file's name.", "adapter_config.json")
            .takes_bytes("The file, as long as announced.")
            .gives_like("How long it is.", json!({ "size_bytes": 2 }))
            .refuses(408, "Nothing came for too long."),
        post("/api/v1/external_weights_upload_finish", "external_weights_upload_finish")
            .says("Make the checkpoint", "All files must be there and fit the base model. A repeat gets the same checkpoint.")
            .takes::<ExternalWeightsUploadFinishRequest>(json!({ "upload_id": "UPLOAD_ID" }))
            .gives::<ExternalWeightsUploadFinishResponse>("It can be sampled from and trained on.", json!({ "tinker_path": CHECKPOINT }))
            .may_miss(),
    ]
}
