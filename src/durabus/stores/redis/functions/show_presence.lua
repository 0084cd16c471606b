-- Show that a process lives.
-- Takes: incarnation
register('show_presence', WRITES, function(tx, asked)
  add(tx, tx[PROCESSES], asked[1], tx.now)
  flush(tx)
  return 0
end)
