-- API keys, stored as SHA-256 in hex. A row stays for ever: a server that ever had a key does not open again. revoked_at
-- may lie ahead: a rotated key ends then. quotas is JSON.

CREATE TABLE keys (
    id BIGINT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    hash TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    last_used_at BIGINT,
    revoked_at BIGINT,
    expires_at BIGINT,
    quotas TEXT NOT NULL
);
CREATE UNIQUE INDEX keys_by_hash ON keys (hash);
CREATE UNIQUE INDEX keys_by_live_name ON keys (name) WHERE revoked_at IS NULL;

-- Counts what was done to keys, so that a server sees cheaply that something was. Also the lock of those who do it.
CREATE TABLE key_changes (
    n BIGINT NOT NULL
);
INSERT INTO key_changes (n) VALUES (0);
