-- One PUBLISHED entry for each event of an id range, in order of id. The entry also remembers the event_id, for as long
-- as the event is known: fewer changes than events mean that one of them is known already.
-- Relies on event_log_published.
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, at, created_at, known, tags, metadata,
    parent_id
)
SELECT
    id, event_id, bus, type, 'PUBLISHED', 'PENDING', 0, 0, 0, created_at, created_at, 1, tags, metadata, parent_id
FROM events WHERE id BETWEEN :first AND :last ORDER BY id
ON CONFLICT DO NOTHING
