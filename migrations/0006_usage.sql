-- What each account took, by hour: counted in memory, added here in batches. An empty text = none: storage belongs to no
-- session; a sampler is named only where no run is known (samples of a base model). Times and device time in
-- microseconds.

CREATE TABLE usage (
    owner TEXT NOT NULL,
    hour BIGINT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    sampler_id TEXT NOT NULL,
    base_model TEXT NOT NULL,
    forward_tokens BIGINT NOT NULL,
    train_tokens BIGINT NOT NULL,
    prefill_tokens BIGINT NOT NULL,
    cached_prefill_tokens BIGINT NOT NULL,
    sampled_tokens BIGINT NOT NULL,
    checkpoints BIGINT NOT NULL,
    storage_byte_seconds BIGINT NOT NULL,
    device_micros BIGINT NOT NULL,
    PRIMARY KEY (owner, hour, session_id, run_id, sampler_id, base_model)
);
CREATE INDEX usage_by_hour ON usage (hour);
