-- Writes handlers' states; existing ones keep their place in the order. Relies on the primary key of event_results.
INSERT INTO {schema}.event_results (
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at, token,
    settled_token
)
SELECT
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, to_timestamp(expires), token,
    settled_token
FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::double precision[], $8::bigint[],
    $9::text[], $10::double precision[], $11::text[], $12::text[]
) WITH ORDINALITY AS given (
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, expires, token, settled_token, n
) ORDER BY n
ON CONFLICT (id, handler_id) DO UPDATE SET
    status = excluded.status, attempts = excluded.attempts, error = excluded.error, value = excluded.value,
    execution_time_ms = excluded.execution_time_ms, fence = excluded.fence, worker_id = excluded.worker_id,
    lease_expires_at = excluded.lease_expires_at, token = excluded.token, settled_token = excluded.settled_token
