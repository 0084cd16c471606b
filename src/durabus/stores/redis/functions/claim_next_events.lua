-- Claim events of a bus: take back events whose lease is over, make due events ready, then grant the first ready
-- events, with the lock of the mode. Relies on held, leases, delayed, ready, ready_tags, locks.
-- Takes: bus, worker, token, limit, lease, mode, tags, max attempts, event_id (or nothing)
register('claim_next_events', WRITES, function(tx, asked)
  return claiming.answer(tx, asked, {})
end)
