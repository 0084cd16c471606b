-- The live events of a bus if it has fewer than :limit. Relies on events_ready, events_delayed,
-- events_aside, events_leased.
SELECT id FROM events WHERE bus = :bus AND ready = 1
UNION ALL
SELECT id FROM events WHERE bus = :bus AND ready = 0 AND status = 'PENDING'
UNION ALL
SELECT id FROM events WHERE bus = :bus AND ready = 2
UNION ALL
SELECT id FROM events WHERE bus = :bus AND status = 'PROCESSING'
LIMIT :limit
