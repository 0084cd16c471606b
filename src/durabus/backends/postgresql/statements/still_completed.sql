-- Which of these events are COMPLETED and not forgotten yet, locked. Relies on event_log_event.
SELECT id, event_id::text, bus, idempotency_key FROM {schema}.event_log
WHERE id = ANY ($1::bigint[]) AND completed ORDER BY id FOR UPDATE
