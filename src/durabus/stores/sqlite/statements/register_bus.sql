-- Makes a bus known; a stopped one becomes active again.
INSERT INTO event_buses (bus, created_at, last_seen_at, revision)
VALUES (:bus, :now, :now, (SELECT value FROM counters WHERE name = 'revision'))
ON CONFLICT (bus) DO UPDATE SET last_seen_at = excluded.last_seen_at, stopped_at = NULL
