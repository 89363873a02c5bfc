-- Runs that only hold weights made elsewhere: copies and uploads. They are listed like others and cannot be trained.

CREATE TABLE held_runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    origin TEXT NOT NULL
);

-- What a request to copy came to, by the client's own key: a repeat makes no second copy.
CREATE TABLE copies (
    owner TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    request TEXT NOT NULL,
    path TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (owner, idempotency_key)
);
CREATE INDEX copies_by_time ON copies (created_at);
