-- Back to PENDING: failed with a retry, released, abandoned or reset. The old token may not be
-- renewed any more; of an abandoned claim the log remembers it.
UPDATE events SET
    status = 'PENDING', ready = :ready, attempts = :attempts, worker_id = NULL, token = NULL, lock_key = NULL,
    updated_at = :now, due_at = :due_at, processing_started_at = NULL, started_at = NULL, lease_expires_at = NULL,
    errors = :errors
WHERE id = :id
