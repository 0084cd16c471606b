-- Which of these events are COMPLETED and not forgotten yet. Relies on event_log_event.
SELECT id, event_id, bus, idempotency_key FROM event_log
WHERE id IN (SELECT value FROM json_each(:ids)) AND action <> 'PUBLISHED' AND completed = 1
