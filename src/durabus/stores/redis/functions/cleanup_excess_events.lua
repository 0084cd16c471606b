-- Delete the COMPLETED events of a bus, except the newest ones, with their log entries. Relies on by_bus and counts.
-- Takes: bus, keep, limit, after id. Returns: how many were deleted, and the id to continue after
register('cleanup_excess_events', FREES, function(tx, asked)
  local bus, keep, limit = asked[1], asked[2], asked[3]
  local excess = tonumber(redis.call('HGET', tx[COUNTS], 'COMPLETED\0' .. bus) or 0) - keep
  if excess <= 0 then
    return { 0, '' }
  end
  local gone, go_on = forgetting.walk(tx, bus, asked[4], math.min(limit, excess), function()
    return true
  end)
  flush(tx)
  return { gone, go_on or '' }
end)
