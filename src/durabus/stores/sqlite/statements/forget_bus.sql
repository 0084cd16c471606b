-- Forgets an archived bus.
DELETE FROM event_buses WHERE bus = ?
