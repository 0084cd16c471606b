-- PENDING and PROCESSING events below an id. finding.py adds the other conditions, the order and the limit.
-- Walks events_id downwards, or uses events_parent.
SELECT {event} FROM {schema}.events WHERE id < $1
