-- Return how many events are in each status. The indexes give the number of live events, counts that of ended ones.
-- Takes: bus, or nothing for all. Returns: pending, processing, completed, completed with errors, failed, cancelled
register('counts', READS, function(tx, asked)
  local bus = asked[1]
  local function live(key)
    return bus and count_of(key, bus) or redis.call('ZCARD', key)
  end
  local function ended(status)
    return tonumber(redis.call('HGET', tx[COUNTS], bus and status .. '\0' .. bus or status) or 0)
  end
  return {
    live(tx[READY]) + live(tx[DELAYED]) + live(tx[BLOCKED]),
    live(tx[LEASES]),
    ended('COMPLETED'),
    ended('COMPLETED_WITH_ERRORS'),
    ended('FAILED'),
    ended('CANCELLED'),
  }
end)
