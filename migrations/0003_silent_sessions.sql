-- Open sessions by their last sign of life, for those that fell silent.

CREATE INDEX sessions_by_silence ON sessions (finished_at, last_heartbeat_at);
