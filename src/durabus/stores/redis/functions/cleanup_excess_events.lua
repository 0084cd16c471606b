-- Delete the COMPLETED and CANCELLED events of a bus, except the newest ones, with their log entries. With a node, stop
-- at the first event that ended a short time ago and that another node waits for. Relies on by_bus and counts.
-- Takes: bus, keep, limit, after id, events up to that id that were left, the node or false, the short time, and what
-- stands before an address in metadata. Returns: how many were deleted, the id to continue after, and how many were left
-- for an archive
register('cleanup_excess_events', FREES, function(tx, asked)
  local bus, keep, limit, node, recent = asked[1], asked[2], asked[3], asked[6], tx.now - asked[7]
  local counted = redis.call('HMGET', tx[COUNTS], 'COMPLETED\0' .. bus, 'CANCELLED\0' .. bus)
  local excess = tonumber(counted[1] or 0) + tonumber(counted[2] or 0) - keep - asked[5]
  if excess <= 0 then
    return { 0, '', 0 }
  end
  local function may_be_unread(state)
    if not node or state[UPDATED] <= recent then
      return false
    end
    local said = cmsgpack.unpack(string.sub(redis.call('HGET', tx[DATA], state[ID]), AFTER_MARK))
    local metadata = said[waits.METADATA]
    return metadata and string.find(metadata, asked[8], 1, true) and not string.find(metadata, node, 1, true)
  end
  local gone, go_on, left = forgetting.walk(tx, bus, asked[4], math.min(limit, excess), function(state)
    if excess > 0 and may_be_unread(state) then
      excess = 0
    end
    excess = excess - 1
    return excess >= 0
  end)
  flush(tx)
  return { gone, excess > 0 and go_on or '', left }
end)
