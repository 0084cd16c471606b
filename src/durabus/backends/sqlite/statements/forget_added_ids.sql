-- Takes back what add_event_ids.sql wrote for an id range, and nothing that was there before.
DELETE FROM event_ids
WHERE id BETWEEN :first AND :last
  AND event_id IN (SELECT event_id FROM events WHERE id BETWEEN :first AND :last)
