-- Delete the COMPLETED and CANCELLED events of a bus, except the newest ones, with their log entries. Relies on by_bus
-- and counts.
-- Takes: bus, keep, limit, after id, events up to that id that were left. Returns: how many were deleted, the id to
-- continue after, and how many were left for an archive
register('cleanup_excess_events', FREES, function(tx, asked)
  local bus, keep, limit = asked[1], asked[2], asked[3]
  local counted = redis.call('HMGET', tx[COUNTS], 'COMPLETED\0' .. bus, 'CANCELLED\0' .. bus)
  local excess = tonumber(counted[1] or 0) + tonumber(counted[2] or 0) - keep - asked[5]
  if excess <= 0 then
    return { 0, '', 0 }
  end
  local gone, go_on, left = forgetting.walk(tx, bus, asked[4], math.min(limit, excess), function()
    excess = excess - 1
    return excess >= 0
  end)
  flush(tx)
  return { gone, excess > 0 and go_on or '', left }
end)
