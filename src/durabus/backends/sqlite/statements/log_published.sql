-- One PUBLISHED entry for each event of an id range, in order of id.
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, at, created_at, tags, metadata, parent_id
)
SELECT id, event_id, bus, type, 'PUBLISHED', 'PENDING', 0, 0, 0, created_at, created_at, tags, metadata, parent_id
FROM events WHERE id BETWEEN :first AND :last ORDER BY id
