-- Claims up to so many events of a bus: expired leases are taken back first, then what is due becomes ready, then the
-- first ready ones are granted, with the lock of the mode. Relies on held, leases, delayed, ready, ready_tags, locks.
-- asks: bus, worker, token, limit, lease, mode, tags, max attempts, event_id (or nothing)
register('claim_next_events', WRITES, function(tx, asked)
  return claiming.answer(tx, asked, {})
end)
