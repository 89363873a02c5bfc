//! Tag `checkpoints`: list, share, expire, delete, download.

use serde_json::{Value, json};
use tinderbox_client::types::checkpoints::{
    CheckpointsListResponse, CheckpointsQuery, ExternalWeightsUrlsResponse, SetTtlRequest,
};

use tinderbox_client::types::search::{CheckpointSearchRequest, CheckpointSearchResponse};

use super::examples::{CHECKPOINT, RUN, TIME};
use super::operation::{Operation, delete, get, post, put};

pub fn operations() -> Vec<Operation> {
    let mut all = lists();
    all.extend(one());
    all.extend(files());
    all
}

fn lists() -> Vec<Operation> {
    let of_run = |path: &str, id: &str| {
        get(path, id)
            .segment("run_id", "The run's id.", RUN)
            .gives::<CheckpointsListResponse>("All of them.", json!({ "checkpoints": [row()] }))
    };
    vec![
        get("/api/v1/checkpoints", "list_user_checkpoints")
            .says(
                "List all checkpoints",
                "`RestClient.list_user_checkpoints()`, `tinker checkpoint list`. The newest first. Clients before 0.28 \
                 are not shown exports, which they cannot read.",
            )
            .query::<CheckpointsQuery>()
            .gives::<CheckpointsListResponse>(
                "A page of checkpoints.",
                json!({ "checkpoints": [row()], "cursor": { "offset": 0, "limit": 100, "total_count": 1 } }),
            ),
        post("/api/v1/checkpoints/search", "search_checkpoints")
            .says(
                "Search checkpoints",
                "`RestClient.search_checkpoints()`. The newest first; a page follows another by its cursor.",
            )
            .takes::<CheckpointSearchRequest>(
                json!({ "name": "step", "training_run_id": RUN, "owner": { "type": "own" }, "limit": 10 }),
            )
            .gives::<CheckpointSearchResponse>("A page of checkpoints.", json!({ "checkpoints": [row()] })),
        of_run("/api/v1/training_runs/{run_id}/checkpoints", "list_checkpoints")
            .says("List a run's checkpoints", "`RestClient.list_checkpoints()`, `tinker checkpoint list --run-id`."),
        of_run("/api/v1/models/{run_id}/checkpoints", "list_model_checkpoints")
            .says("List a run's checkpoints", "The same list under the path that clients of 0.3 ask for."),
    ]
}

fn row() -> Value {
    json!({
        "checkpoint_id": "weights/step-1", "checkpoint_type": "training", "time": TIME, "tinker_path": CHECKPOINT,
        "size_bytes": 123_456, "public": false, "user_metadata": { "note": "before the weekend" },
    })
}

fn one() -> Vec<Operation> {
    vec![
        named(
            post("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/publish", "publish_checkpoint"),
            "weights",
            "step-1",
        )
        .says(
            "Publish a checkpoint",
            "`RestClient.publish_checkpoint_from_tinker_path()`, `tinker checkpoint publish`. Everyone on this server \
                 may then load it and sample from it, and nobody else may change it.",
        )
        .gives_nothing("It is public."),
        named(
            delete("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/publish", "unpublish_checkpoint"),
            "weights",
            "step-1",
        )
        .says(
            "Withdraw a published checkpoint",
            "`RestClient.unpublish_checkpoint_from_tinker_path()`, `tinker checkpoint unpublish`.",
        )
        .gives_nothing("It is private."),
        named(
            put("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/ttl", "set_checkpoint_ttl"),
            "weights",
            "step-1",
        )
        .says(
            "Set when a checkpoint expires",
            "`RestClient.set_checkpoint_ttl_from_tinker_path()`, `tinker checkpoint set-ttl`. The field must be \
                 there: `null` removes the expiry.",
        )
        .takes::<SetTtlRequest>(json!({ "ttl_seconds": 86400 }))
        .gives_nothing("It expires so many seconds from now, or never."),
        named(
            delete("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}", "delete_checkpoint"),
            "weights",
            "step-1",
        )
        .says(
            "Delete a checkpoint",
            "`RestClient.delete_checkpoint_from_tinker_path()`, `tinker checkpoint delete`. There is no way back.",
        )
        .gives_nothing("It is gone."),
    ]
}

fn files() -> Vec<Operation> {
    let urls = json!({
        "urls": { "adapter_config.json": "http://127.0.0.1:8000/api/v1/download/TOKEN/adapter_config.json" },
        "expires": TIME,
    });
    vec![
        named(
            get(
                "/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/external_weights_urls",
                "external_weights_urls",
            ),
            "external_weights",
            "export",
        )
        .says(
            "Links to an export's files",
            "`RestClient.get_external_weights_urls()`, `tinker checkpoint download`. The links need no key and work \
                 for an hour. Only exports (`external_weights`) have them.",
        )
        .gives::<ExternalWeightsUrlsResponse>("A link for each file.", urls),
        named(
            get("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/archive", "checkpoint_archive"),
            "weights",
            "step-1",
        )
        .says(
            "A link to a checkpoint as one tar file",
            "`RestClient.get_checkpoint_archive_url()` of clients up to 0.35. The link is in the header `Location`, \
                 its end in `Expires`.",
        )
        .answers_blank(302, "To the archive, which needs no key."),
        get("/api/v1/download/{token}/{file}", "download")
            .says(
                "A file behind a link",
                "Needs no key: the token, which `external_weights_urls` and `archive` put into their links, is the \
                 permission.",
            )
            .open()
            .segment("token", "From a link.", "TOKEN")
            .segment("file", "A file's name, or `archive.tar`.", "adapter_config.json")
            .gives_file("The file."),
    ]
}

/// On the checkpoint `tinker://RUN/KIND/NAME`.
fn named(operation: Operation, kind: &str, name: &str) -> Operation {
    operation
        .segment("run_id", "The run that saved it.", RUN)
        .segment_one_of("kind", "What it is for.", &["weights", "sampler_weights", "external_weights"], kind)
        .segment("name", "Its name.", name)
}
