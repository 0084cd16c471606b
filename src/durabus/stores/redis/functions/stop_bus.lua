-- Mark a registered bus as stopped now.
-- Takes: bus
register('stop_bus', WRITES, function(tx, asked)
  local bus, info = asked[1], registering.bus(tx, asked[1])
  if info then
    info[B_STOPPED] = tx.now
    put(tx, tx[BUSES], bus, cmsgpack.pack(info))
    add(tx, tx[STOPPED], bus, tx.now)
    flush(tx)
  end
  return 0
end)
