-- The largest event id ever given. Every event has an entry in the log from its publication until it is trimmed, and a
-- trim notes the largest id it forgot, so publishing needs no counter of its own to write.
-- Relies on event_log_event and on the primary key of counters. Only right while the write lock is held.
SELECT max(
    coalesce((SELECT max(id) FROM event_log), 0),
    (SELECT value FROM counters WHERE name = 'forgotten_event_id')
)
