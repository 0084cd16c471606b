-- The largest event id ever given: it is in the queue, or it was claimed at least once and has left entries in the log,
-- or it was noted when it was forgotten. So publishing needs no counter of its own to write.
-- Relies on the primary keys of events and counters and on event_log_event. Only right under the write lock.
SELECT max(
    coalesce((SELECT max(id) FROM events), 0),
    coalesce((SELECT max(id) FROM event_log WHERE action <> 'PUBLISHED'), 0),
    (SELECT value FROM counters WHERE name = 'forgotten_event_id')
)
