-- Events of any bus whose lease is over, the longest expired first. Reads events_leased alone: one entry for each event
-- that somebody works on, never the backlog.
SELECT id FROM events INDEXED BY events_leased
WHERE status = 'PROCESSING' AND lease_expires_at <= :now
ORDER BY lease_expires_at, id LIMIT :limit
