-- Takes back what log_published.sql wrote for an id range, and nothing that was there before.
-- Relies on event_log_published.
DELETE FROM event_log
WHERE known = 1 AND id BETWEEN :first AND :last
  AND event_id IN (SELECT event_id FROM events WHERE id BETWEEN :first AND :last)
