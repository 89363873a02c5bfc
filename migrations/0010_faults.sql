-- Why a run is marked as corrupted: JSON with seq_id, datum and reason, or NULL.

ALTER TABLE training_runs ADD COLUMN fault TEXT;
