-- As next_events.sql, for ids that were found by their tags.
SELECT
    id, event_id, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key, attempts,
    generation, fence, errors, created_at, due_at, has_results,
    priority = 0
    AND coalesce(metadata, tags, max_attempts, parent_id, idempotency_key, errors) IS NULL
FROM events
WHERE id IN (SELECT value FROM json_each(:ids)) AND ready = 1
ORDER BY priority DESC, id
