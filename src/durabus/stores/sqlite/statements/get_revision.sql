-- Which list of handlers a bus has.
SELECT revision FROM event_buses WHERE bus = ?
