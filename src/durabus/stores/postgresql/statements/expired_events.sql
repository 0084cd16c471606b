-- Events of a bus whose lease is over, the longest expired first, locked. Relies on events_leased.
SELECT id FROM {schema}.events
WHERE bus = $1 AND status = 'PROCESSING' AND lease_expires_at <= to_timestamp($2)
ORDER BY lease_expires_at, id LIMIT $3 FOR UPDATE SKIP LOCKED
