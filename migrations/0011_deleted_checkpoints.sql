-- Checkpoints that were deleted a short while ago: a client whose answer was lost with a restart asks again.

CREATE TABLE deleted_checkpoints (
    path TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    deleted_at BIGINT NOT NULL
);
