-- What was done, by account; owner is empty where nobody is known. details is JSON.

CREATE TABLE audit (
    owner TEXT NOT NULL,
    at BIGINT NOT NULL,
    event TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX audit_by_owner ON audit (owner, at);
CREATE INDEX audit_by_time ON audit (at);
