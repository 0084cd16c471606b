-- Of ready events, those that another live event of their ordering key goes before: a PENDING one with a smaller id, or
-- one that is being worked on. Relies on events_line.
SELECT event.id
FROM json_each(:ids) AS wanted CROSS JOIN events AS event
WHERE event.id = wanted.value AND event.ordering_key IS NOT NULL AND (
    EXISTS (
        SELECT 1 FROM events AS other
        WHERE other.bus = event.bus AND other.ordering_key = event.ordering_key AND other.status = 'PENDING'
            AND other.id < event.id
    )
    OR EXISTS (
        SELECT 1 FROM events AS other
        WHERE other.bus = event.bus AND other.ordering_key = event.ordering_key AND other.status = 'PROCESSING'
    )
)
