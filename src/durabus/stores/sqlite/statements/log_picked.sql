-- One PICKED entry for each claimed event, in queue order. Relies on the primary key of events.
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, worker_id, at, created_at
)
SELECT
    event.id, event.event_id, event.bus, event.type, 'PICKED', 'PROCESSING', event.attempts, event.generation,
    event.fence, event.worker_id, event.updated_at, event.created_at
FROM json_each(:ids) AS claimed CROSS JOIN events AS event
WHERE event.id = claimed.value
