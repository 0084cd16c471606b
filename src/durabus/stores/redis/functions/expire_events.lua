-- Take back events of any bus whose lease is over, and claim none. Relies on leases; looks at a limited number of buses
-- in one call.
-- Takes: max attempts, limit, after bus. Returns: how many were taken back, and the bus to continue after
local BUSES_AT_ONCE = 1000

register('expire_events', WRITES, function(tx, asked)
  local limit, bus, taken, looked = asked[2], asked[3], 0, 0
  repeat
    bus = next_bus(tx[LEASES], bus)
    if bus then
      local over = past_of(tx[LEASES], bus, tx.now, limit - taken)
      taken = taken + lifecycle.expire_all(tx, ids_of(over), asked[1])
      looked = looked + 1
    end
  until not bus or taken >= limit or looked == BUSES_AT_ONCE
  flush(tx)
  return { taken, bus or '' }
end)
