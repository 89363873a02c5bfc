//! Tag `runs`: create a training run, look at it, list them.

use serde_json::json;
use tinderbox_client::types::checkpoints::{
    RollbackResponse, RunsQuery, ScopeQuery, TrainingRun, TrainingRunsResponse,
};
use tinderbox_client::types::training::{CreateModelRequest, GetInfoRequest, GetInfoResponse, UnloadModelRequest};

use super::examples::{MODEL, REQUEST, RUN, SECOND_RUN, SESSION, TIME, promise};
use super::operation::{Operation, get, post};

pub fn operations() -> Vec<Operation> {
    let run = json!({
        "training_run_id": RUN, "base_model": MODEL, "model_owner": "local", "is_lora": true, "lora_rank": 16,
        "corrupted": false, "last_request_time": TIME, "user_metadata": {},
    });
    vec![
        post("/api/v1/create_model", "create_model")
            .says(
                "Create a training run",
                "`ServiceClient.create_lora_training_client()`. With `lora_config` an adapter is trained; without it, or \
                 with `base_model` given as `NAME:full`, every weight. The same request again is the same run.",
            )
            .takes::<CreateModelRequest>(json!({
                "type": "create_model", "session_id": SESSION, "model_seq_id": 0, "base_model": MODEL,
                "lora_config": { "rank": 16, "seed": 7, "train_unembed": true, "train_mlp": true, "train_attn": true },
            }))
            .promises("A promise of `{\"type\": \"create_model\", \"model_id\": …}`.", promise())
            .within_quota()
            .may_miss(),
        post("/api/v1/get_info", "get_info")
            .says(
                "What a run is",
                "`TrainingClient.get_info()` and `get_tokenizer()`, which loads the tokenizer named here.",
            )
            .takes::<GetInfoRequest>(json!({ "type": "get_info", "model_id": RUN }))
            .gives::<GetInfoResponse>(
                "Its model and adapter.",
                json!({
                    "type": "get_info", "model_id": RUN, "is_lora": true, "lora_rank": 16, "model_name": MODEL,
                    "model_data": { "arch": "qwen3", "model_name": MODEL, "tokenizer_id": MODEL },
                    "optimizer_config": { "type": "adamw" },
                }),
            )
            .may_miss(),
        post("/api/v1/unload_model", "unload_model")
            .says(
                "Drop a run from memory",
                "Clients up to 0.25. Takes effect at once, whatever waits; what was not saved is lost.",
            )
            .takes::<UnloadModelRequest>(json!({ "type": "unload_model", "model_id": SECOND_RUN }))
            .promises(
                "A promise of `{\"type\": \"unload_model\", \"model_id\": …}`.",
                json!({ "request_id": REQUEST, "model_id": SECOND_RUN }),
            )
            .may_miss(),
        get("/api/v1/training_runs", "list_training_runs")
            .says("List training runs", "`RestClient.list_training_runs()`, `tinker run list`. The newest first.")
            .query::<RunsQuery>()
            .gives::<TrainingRunsResponse>(
                "A page of runs.",
                json!({ "training_runs": [run], "cursor": { "offset": 0, "limit": 20, "total_count": 1 } }),
            ),
        get("/api/v1/training_runs/{run_id}", "get_training_run")
            .says("One training run", "`RestClient.get_training_run()`, `tinker run info`.")
            .segment("run_id", "The run's id.", RUN)
            .query::<ScopeQuery>()
            .gives::<TrainingRun>("The run and its last checkpoints.", run),
        roll_back(),
    ]
}

fn roll_back() -> Operation {
    post("/api/v1/training_runs/{run_id}/rollback", "roll_back_training_run")
        .says(
            "Take a run back to its last good state",
            "Not in the Tinker protocol; `tinderbox rollback RUN`. For a run whose weights have diverged: they and the \
             optimiser become those of the run's last state on disk, which the server writes every few seconds of \
             work, and pending gradients are dropped. Numbers go on where they are.",
        )
        .segment("run_id", "The run's id.", RUN)
        .gives::<RollbackResponse>(
            "Which requests its state still holds.",
            json!({ "training_run_id": RUN, "before_seq_id": 1 }),
        )
        .within_quota()
        .may_miss()
}
