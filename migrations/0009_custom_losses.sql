-- Losses that clients traced and uploaded: one for each number in a session. body is the request as JSON.

CREATE TABLE custom_losses (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    session_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    body TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (session_id, seq)
);
