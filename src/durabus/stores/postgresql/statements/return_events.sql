-- Back to PENDING: failed with a retry, released, abandoned or reset. The old tokens may
-- not be renewed any more; of an abandoned claim the log remembers it.
-- What is due at once goes to the lane of events that were here before. Relies on events_id: `= ANY` keeps the planner
-- from a join that reads every event there is.
UPDATE {schema}.events AS event SET
    status = 'PENDING', lane = CASE WHEN given.ready THEN 2 ELSE 0 END, attempts = given.attempts, worker_id = NULL,
    token = NULL, lock_key = NULL, updated_at = to_timestamp(given.updated), due_at = to_timestamp(given.due),
    processing_started_at = NULL, started_at = NULL, lease_expires_at = NULL, errors = given.errors
FROM unnest(
    $1::bigint[], $2::boolean[], $3::integer[], $4::double precision[], $5::double precision[], $6::text[]
) AS given (id, ready, attempts, updated, due, errors)
WHERE event.id = ANY ($1::bigint[]) AND event.id = given.id
