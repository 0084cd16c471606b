-- What a claim has to do first: delayed events that are due, leases that are over, claims this token holds already;
-- and the revision of the bus's handlers. Four index probes, whatever the backlog: events_delayed, events_leased,
-- events_token, the primary key of event_buses.
SELECT
    EXISTS (SELECT 1 FROM events WHERE bus = :bus AND ready = 0 AND status = 'PENDING' AND due_at <= :now),
    EXISTS (SELECT 1 FROM events WHERE bus = :bus AND status = 'PROCESSING' AND lease_expires_at <= :now),
    EXISTS (SELECT 1 FROM events WHERE token = :token AND status = 'PROCESSING'),
    (SELECT revision FROM event_buses WHERE bus = :bus)
