-- Events of a bus whose lease is over, the longest expired first. Relies on events_leased.
SELECT id FROM events
WHERE bus = :bus AND status = 'PROCESSING' AND lease_expires_at <= :now
ORDER BY lease_expires_at, id LIMIT :limit
