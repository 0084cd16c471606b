-- How the newest settlement of an event ended; beside settlements only ABANDONED carries a token.
-- Relies on event_log_event.
SELECT token, fence, action, status, next_retry_at FROM event_log
WHERE id = ? AND action <> 'PUBLISHED' AND action <> 'ABANDONED' AND token IS NOT NULL ORDER BY position DESC LIMIT 1
