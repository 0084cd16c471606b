-- The first events of a bus that may be claimed, in queue order: larger priority, then smaller id.
-- Walks events_ready from its beginning and stops at the limit, so the backlog does not matter.
SELECT
    id, event_id, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key, attempts,
    generation, fence, errors, created_at, due_at, has_results,
    priority = 0
    AND coalesce(metadata, tags, max_attempts, parent_id, idempotency_key, errors) IS NULL
FROM events
WHERE bus = :bus AND ready = 1
ORDER BY priority DESC, id LIMIT :limit
