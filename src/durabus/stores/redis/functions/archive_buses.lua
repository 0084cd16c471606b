-- Delete buses that were stopped long enough ago and have no live events, and their handlers. Relies on stopped buses;
-- looks at a limited number of them in one call.
-- Takes: stopped for, limit, how many to skip. Returns: how many were deleted, how many were skipped in total, whether
-- more follow
local STOPPED_AT_ONCE = 1000

register('archive_buses', FREES, function(tx, asked)
  local limit, passed, gone = asked[2], asked[3], 0
  local till = string.format('%.17g', tx.now - asked[1])
  local buses = redis.call('ZRANGEBYSCORE', tx[STOPPED], '-inf', till, 'LIMIT', passed, STOPPED_AT_ONCE)
  for _, bus in ipairs(buses) do
    if gone == limit then
      break
    elseif is_live(tx, bus) then
      passed = passed + 1
    else
      unset(tx, tx[BUSES], bus)
      unset(tx, tx[BUS_HANDLERS], bus)
      drop(tx, tx[BUS_ORDER], bus)
      drop(tx, tx[STOPPED], bus)
      gone = gone + 1
    end
  end
  flush(tx)
  return { gone, passed, #buses == STOPPED_AT_ONCE and 1 or 0 }
end)
