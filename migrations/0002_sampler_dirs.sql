-- A sampler over a checkpoint keeps the weights it was created with: the directory they lie in. A row from before gets
-- the one that its path names now; an empty one fits no checkpoint.

ALTER TABLE samplers ADD COLUMN source_dir TEXT;
UPDATE samplers SET source_dir = COALESCE(
    (SELECT dir FROM checkpoints
     WHERE 'tinker://' || checkpoints.run_id || '/' || checkpoints.kind || '/' || checkpoints.name = samplers.source_path),
    '')
WHERE source = 'checkpoint';
