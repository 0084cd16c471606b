-- Events of any bus whose lease is over, locked. Reads events_leased alone: one entry for each event that somebody
-- works on, never the backlog.
SELECT id FROM {schema}.events
WHERE status = 'PROCESSING' AND lease_expires_at <= to_timestamp($1)
ORDER BY lease_expires_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
