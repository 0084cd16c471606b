-- Delete entries, at or before a position and old enough, whose events were purged or removed. Relies on deleted_order,
-- which sorts an event by its first entry.
-- Takes: until, older than, limit, after, the archive to ignore. Returns: how many events and entries were deleted, and the position to
-- continue after
register('trim_deleted', FREES, function(tx, asked)
  local last, before_ts, limit, after = asked[1], tx.now - asked[2], asked[3], asked[4]
  last = math.min(last, archives.until_position(tx, asked[5]))
  local at_once = math.min(limit, 500)
  local from = '(' .. string.format('%d', after)
  local found = redis.call('ZRANGEBYSCORE', tx[DELETED_ORDER], from, last, 'WITHSCORES', 'LIMIT', 0, at_once)
  local events, entries = 0, 0
  for n = 1, #found, 2 do
    local id, gone, kept = found[n], {}, {}
    for _, position in ipairs(log.positions(redis.call('HGET', tx[DELETED_TRAILS], id))) do
      local number = tonumber(position)
      local entry = number <= last and log.read(tx, number - 1, 1, position)[1]
      local goes = entry and cmsgpack.unpack(entry[3])[3] <= before_ts
      table.insert(goes and gone or kept, position)
    end
    log.remove(tx, gone)
    if #kept == 0 then
      unset(tx, tx[DELETED], id)
      unset(tx, tx[DELETED_TRAILS], id)
      drop(tx, tx[DELETED_ORDER], id)
    elseif #gone > 0 then
      put(tx, tx[DELETED_TRAILS], id, table.concat(kept, ','))
      add(tx, tx[DELETED_ORDER], id, kept[1])
    end
    events, entries = events + (#gone > 0 and 1 or 0), entries + #gone
  end
  flush(tx)
  return { events, entries, #found == 2 * at_once and found[#found] or '' }
end)
