//! Tag `usage`: what an account took, what it stores, how it goes.

use serde_json::json;
use tinderbox_client::types::billing::{
    BillingUsageQuery, BillingUsageResponse, CheckpointStorageQuery, CheckpointStorageResponse,
};
use tinderbox_client::types::usage::{StatusResponse, UsageQuery, UsageResponse};

use super::examples::{CHECKPOINT, MODEL, RUN, SESSION, TIME};
use super::operation::{Operation, get};

pub fn operations() -> Vec<Operation> {
    let mut all = billing();
    all.extend(own());
    all
}

fn billing() -> Vec<Operation> {
    vec![
        get("/api/v1/billing/usage/events", "billing_usage_events")
            .says(
                "Usage by hour",
                "`AdminClient.get_billing_usage()`, `tinker billing usage`. Counted up to this moment; there is no price.",
            )
            .query::<BillingUsageQuery>()
            .gives::<BillingUsageResponse>(
                "What each session took in each hour, by kind.",
                json!({
                    "data": [{
                        "bucket_start": "2026-01-02T03:00:00Z", "bucket_end": "2026-01-02T04:00:00Z", "base_model": MODEL,
                        "user_id": "my-lab", "session_id": SESSION, "event_info": { "type": "training", "token_count": 4096 },
                    }],
                    "sessions": { SESSION: {} },
                }),
            ),
        get("/api/v1/billing/usage/checkpoints/current", "billing_checkpoints")
            .says("Stored bytes by project", "`AdminClient.get_checkpoint_storage()`, `tinker billing storage`.")
            .query::<CheckpointStorageQuery>()
            .gives::<CheckpointStorageResponse>(
                "The largest first.",
                json!({ "data": [{ "project_id": "my-project", "org_user_urn": "my-lab", "checkpoint_count": 1,
                                   "size_bytes": 123_456, "size_gigabytes": 0.000_123_456 }] }),
            ),
    ]
}

fn own() -> Vec<Operation> {
    let counts = json!({
        "forward_tokens": 0, "training_tokens": 4096, "prefill_tokens": 128, "cached_prefill_tokens": 0,
        "sampled_tokens": 512, "checkpoints": 1, "storage_gigabyte_hours": 0.25, "device_seconds": 1.5,
    });
    let mut row = json!({ "day": "2026-01-02", "session_id": SESSION, "run_id": RUN, "base_model": MODEL });
    if let (Some(row), Some(counts)) = (row.as_object_mut(), counts.as_object()) {
        row.extend(counts.clone());
    }
    let quota = json!({ "limit": 100, "used": 1 });
    vec![
        get("/api/v1/usage", "usage")
            .says("Usage by day, run and sampler", "An addition to the protocol; for scripts and people.")
            .query::<UsageQuery>()
            .may_miss()
            .gives::<UsageResponse>(
                "Tokens, device time and storage.",
                json!({
                    "total": counts, "data": [row],
                    "storage": {
                        "checkpoint_count": 1, "size_bytes": 123_456, "ephemeral_samplers": 0,
                        "checkpoints": [{ "tinker_path": CHECKPOINT, "size_bytes": 123_456, "time": TIME }],
                    },
                }),
            ),
        get("/api/v1/status", "status")
            .says(
                "How it goes",
                "An addition to the protocol: what waits and why, quotas and their use, latest failures.",
            )
            .gives::<StatusResponse>(
                "The server, and the asking account's part of it.",
                json!({
                    "server": {
                        "queue_depth": 0, "tokens_per_second": { "training": 1024.0, "prefill": 0.0, "sampled": 64.0 },
                        "capacity": { "decode_sequences": 64, "pass_tokens": 2048 },
                    },
                    "quotas": {
                        "weight": 1.0, "max_runs": quota, "pending_requests": quota, "requests_per_minute": {},
                        "tokens_per_minute": {}, "disk_bytes": {},
                    },
                    "waiting_count": 0, "waiting": [], "recent_errors": [],
                }),
            ),
    ]
}
