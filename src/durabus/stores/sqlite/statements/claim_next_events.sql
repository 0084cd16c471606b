-- Grants the claim: the only statement that advances attempts and fence. The write lock is held since before the
-- ids were chosen, so no second caller can have taken one of them.
UPDATE events SET
    status = 'PROCESSING', ready = 0, attempts = attempts + 1, fence = fence + 1, worker_id = :worker_id,
    token = :token, lock_key = :lock_key, updated_at = :now, processing_started_at = :now, started_at = NULL,
    lease_expires_at = :expires_at
WHERE id IN (SELECT value FROM json_each(:ids))
