-- Log entries of transitions that the kernel decided, in order. The last columns are set for COMPLETED only: then the
-- row is the event, and get_event is served from it.
INSERT INTO {schema}.event_log (
    tx, action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, worker_id, error,
    next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, results, token,
    completed, priority, max_attempts, due_at, processing_started_at, started_at, idempotency_key, reason
)
SELECT
    (SELECT {schema}.log_transaction()), action, id, event_id::uuid, bus, type, status, to_timestamp(at), to_timestamp(created), attempt, generation, fence,
    worker_id, error, to_timestamp(next_retry), execution_time_ms, status_code, tags, metadata, parent_id::uuid,
    payload, errors, results, token, completed, priority, max_attempts, to_timestamp(due), to_timestamp(picked),
    to_timestamp(started), idempotency_key, reason
FROM unnest(
    $1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::double precision[],
    $8::double precision[], $9::integer[], $10::integer[], $11::bigint[], $12::text[], $13::text[],
    $14::double precision[], $15::double precision[], $16::integer[], $17::text[], $18::text[], $19::text[],
    $20::text[], $21::text[], $22::text[], $23::text[], $24::boolean[], $25::integer[], $26::integer[],
    $27::double precision[], $28::double precision[], $29::double precision[], $30::text[], $31::text[]
) WITH ORDINALITY AS given (
    action, id, event_id, bus, type, status, at, created, attempt, generation, fence, worker_id, error, next_retry,
    execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, results, token, completed, priority,
    max_attempts, due, picked, started, idempotency_key, reason, n
) ORDER BY n
