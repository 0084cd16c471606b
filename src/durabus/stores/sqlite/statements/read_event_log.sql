-- The audit trail of one event. Relies on event_log_published and event_log_event.
SELECT {entry} FROM event_log WHERE event_id = :event_id AND known = 1
UNION ALL
SELECT {entry} FROM event_log WHERE id = :id AND action <> 'PUBLISHED'
ORDER BY position
