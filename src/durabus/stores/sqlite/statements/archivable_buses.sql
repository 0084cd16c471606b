-- Buses that were stopped long enough ago and have no live events. Walks event_buses_stopped.
SELECT bus FROM event_buses
WHERE stopped_at <= :until
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND ready = 1)
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND ready = 0 AND status = 'PENDING')
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.bus = event_buses.bus AND status = 'PROCESSING')
ORDER BY stopped_at, bus LIMIT :limit
