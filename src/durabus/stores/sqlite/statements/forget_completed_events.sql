-- Completed events leave the queue. Relies on the primary key of events.
DELETE FROM events WHERE id IN (SELECT value FROM json_each(:ids))
