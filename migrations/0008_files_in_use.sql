-- Who still reads a directory: its checkpoint, and the samplers that were created over it.

CREATE INDEX samplers_by_source_dir ON samplers (source_dir);
CREATE INDEX checkpoints_by_dir ON checkpoints (dir);
