-- Remembers the event_id of each event in an id range. Fewer changes than events: one is known already.
-- Relies on the primary key of event_ids, which outlives the event's stay in the hot table.
INSERT INTO event_ids (event_id, id)
SELECT event_id, id FROM events WHERE id BETWEEN :first AND :last ORDER BY id
ON CONFLICT DO NOTHING
