-- PENDING and PROCESSING events below an id. finding.py adds the other conditions, the order and the limit.
-- Walks the primary key of events downwards, or uses events_parent.
SELECT {event} FROM events WHERE id < :before_id
