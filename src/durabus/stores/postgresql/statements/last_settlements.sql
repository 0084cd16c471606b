-- How the newest settlement of each event ended; beside settlements only ABANDONED carries a token.
-- Relies on event_log_event.
SELECT DISTINCT ON (id) id, token, fence, action, status, date_part('epoch', next_retry_at) FROM {schema}.event_log
WHERE id = ANY ($1::bigint[]) AND token IS NOT NULL AND action <> 'ABANDONED'
ORDER BY id, tx DESC, position DESC
