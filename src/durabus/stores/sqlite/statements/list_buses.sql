-- Registered buses by name. Walks the primary key of event_buses.
SELECT bus, created_at, last_seen_at, stopped_at FROM event_buses WHERE bus > :after ORDER BY bus LIMIT :limit
