-- Forgets the oldest COMPLETED events of a bus beyond the newest so many, with their log entries. Relies on by_bus, counts.
-- asks: bus, keep, limit, after id; answers how many went, and after which id to go on
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
