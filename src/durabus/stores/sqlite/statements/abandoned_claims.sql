-- The claims that were taken from events because their lease was over, while nobody has claimed those events since: then
-- the newest entry of the event is the one that says so. Relies on the primary key of events and on event_log_event.
SELECT event.id, last.token, event.fence, last.worker_id, (
    SELECT max(at) FROM event_log
    WHERE id = event.id AND action <> 'PUBLISHED' AND action = 'PICKED' AND fence = event.fence
), (
    SELECT max(at) FROM event_log
    WHERE id = event.id AND action <> 'PUBLISHED' AND action = 'STARTED' AND fence = event.fence
)
FROM json_each(:ids) AS wanted CROSS JOIN events AS event CROSS JOIN event_log AS last
WHERE event.id = wanted.value AND event.status = 'PENDING' AND event.fence > 0
  AND last.position = (SELECT max(position) FROM event_log WHERE id = event.id AND action <> 'PUBLISHED')
  AND last.action = 'ABANDONED' AND last.token IS NOT NULL
