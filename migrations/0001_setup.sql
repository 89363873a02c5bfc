-- Sessions, runs, samplers, checkpoints, telemetry. Portable: TEXT and BIGINT only; times are microseconds since 1970
-- in UTC, flags are 0 or 1, metadata and tags are JSON.

CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    last_heartbeat_at BIGINT NOT NULL,
    tags TEXT NOT NULL,
    user_metadata TEXT NOT NULL,
    sdk_version TEXT NOT NULL,
    project_id TEXT,
    display_name TEXT,
    -- All three are NULL while the session is active.
    finished_at BIGINT,
    finish_reason TEXT,
    finish_detail TEXT
);
CREATE INDEX sessions_by_owner ON sessions (owner, created_at, id);
CREATE INDEX sessions_by_project ON sessions (project_id);

-- lora_* and train_* are NULL for a full fine-tuning. lora_seed holds the bits of an unsigned number.
CREATE TABLE training_runs (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    session_id TEXT NOT NULL,
    base_model TEXT NOT NULL,
    is_lora BIGINT NOT NULL,
    lora_rank BIGINT,
    lora_seed BIGINT,
    train_attn BIGINT,
    train_mlp BIGINT,
    train_unembed BIGINT,
    user_metadata TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    last_request_at BIGINT NOT NULL,
    corrupted BIGINT NOT NULL
);
CREATE INDEX training_runs_by_owner ON training_runs (owner, created_at, id);
CREATE INDEX training_runs_by_session ON training_runs (session_id, created_at, id);

-- source: base, checkpoint (source_path is its tinker:// path) or snapshot (source_run is the run it was taken from).
CREATE TABLE samplers (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    session_id TEXT NOT NULL,
    base_model TEXT NOT NULL,
    source TEXT NOT NULL,
    source_path TEXT,
    source_run TEXT,
    created_at BIGINT NOT NULL,
    clients_joined BIGINT NOT NULL
);
CREATE INDEX samplers_by_session ON samplers (session_id, created_at, id);

-- kind: weights, sampler_weights or external_weights.
CREATE TABLE checkpoints (
    run_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    dir TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    public BIGINT NOT NULL,
    user_metadata TEXT NOT NULL,
    base_model TEXT NOT NULL,
    is_lora BIGINT NOT NULL,
    lora_rank BIGINT,
    lora_seed BIGINT,
    train_attn BIGINT,
    train_mlp BIGINT,
    train_unembed BIGINT,
    PRIMARY KEY (run_id, kind, name)
);
CREATE INDEX checkpoints_by_owner ON checkpoints (owner, created_at);
CREATE INDEX checkpoints_by_expiry ON checkpoints (expires_at);

-- session_id may be `sessionless-<uuid>`; body is what the client sent, as JSON.
CREATE TABLE telemetry (
    owner TEXT NOT NULL,
    session_id TEXT NOT NULL,
    received_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX telemetry_by_time ON telemetry (received_at);
