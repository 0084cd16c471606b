-- Makes a bus known; a stopped one becomes active again.
INSERT INTO event_buses (bus, created_at, last_seen_at) VALUES (:bus, :now, :now)
ON CONFLICT (bus) DO UPDATE SET last_seen_at = excluded.last_seen_at, stopped_at = NULL
