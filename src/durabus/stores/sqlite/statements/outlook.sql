-- Whether a bus has something to claim now, and when it next will: the earliest due time and the earliest lease end.
-- Three index probes: events_ready, events_delayed, events_leased.
SELECT
    EXISTS (SELECT 1 FROM events WHERE bus = :bus AND ready = 1),
    (SELECT min(due_at) FROM events WHERE bus = :bus AND ready = 0 AND status = 'PENDING'),
    (SELECT min(lease_expires_at) FROM events WHERE bus = :bus AND status = 'PROCESSING')
