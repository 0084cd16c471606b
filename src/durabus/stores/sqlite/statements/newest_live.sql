-- The newest live event below an id, of any bus. Relies on the primary key of events.
SELECT id FROM events WHERE id < :before_id ORDER BY id DESC LIMIT 1
