-- The newest event below an id that somebody worked on, of any bus: no COMPLETED one is newer. Relies on event_log_event.
SELECT id FROM event_log WHERE id < :before_id AND action <> 'PUBLISHED' ORDER BY id DESC LIMIT 1
