-- The claims that were taken from events because their lease was over, while nobody has claimed those events since: then
-- the newest entry of the event is the one that says so. Relies on events_id and event_log_event.
SELECT last.id, last.token, last.fence, last.worker_id, (
    SELECT date_part('epoch', max(e.at)) FROM {schema}.event_log AS e
    WHERE e.id = last.id AND e.fence = last.fence AND e.action = 'PICKED'
), (
    SELECT date_part('epoch', max(e.at)) FROM {schema}.event_log AS e
    WHERE e.id = last.id AND e.fence = last.fence AND e.action = 'STARTED'
)
FROM (
    SELECT DISTINCT ON (log.id) log.id, log.action, log.token, log.fence, log.worker_id
    FROM {schema}.event_log AS log
    WHERE log.id = ANY (ARRAY(
        SELECT event.id FROM {schema}.events AS event
        WHERE event.id = ANY ($1::bigint[]) AND event.status = 'PENDING' AND event.fence > 0
    ))
    ORDER BY log.id, log.tx DESC, log.position DESC
) AS last
WHERE last.action = 'ABANDONED' AND last.token IS NOT NULL
