-- Return the names of buses with PENDING or PROCESSING events. It jumps from bus to bus over the indexes of live
-- events.
-- Takes: after, limit
register('active_buses', READS, function(tx, asked)
  local after, limit, names = asked[1], asked[2], {}
  while #names < limit do
    local nearest
    for _, key in ipairs({ tx[READY], tx[DELAYED], tx[LEASES] }) do
      local bus = next_bus(key, after)
      if bus and (not nearest or is_before(bus, nearest)) then
        nearest = bus
      end
    end
    if not nearest then
      break
    end
    names[#names + 1], after = nearest, nearest
  end
  return names
end)
