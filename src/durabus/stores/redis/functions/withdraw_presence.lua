-- Forget a process: what it still holds is free when its leases are over.
-- Takes: incarnation
register('withdraw_presence', FREES, function(tx, asked)
  drop(tx, tx[PROCESSES], asked[1])
  flush(tx)
  return 0
end)
