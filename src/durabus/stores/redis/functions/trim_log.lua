-- Delete COMPLETED and CANCELLED events that ended at or before a position and long enough ago, with all their entries.
-- Walks the stream from a position and ends at the first entry that is too new.
-- Takes: until, older than, limit, after, the archive to ignore. Returns: how many events and how many entries were
-- deleted, and the position
-- to continue after; or nothing
register('trim_log', FREES, function(tx, asked)
  local last, before_ts, limit, after = asked[1], tx.now - asked[2], asked[3], asked[4]
  if last > tx.position then
    return {}
  end
  last = math.min(last, archives.until_position(tx, asked[5]))
  local events, entries = 0, 0
  local found = log.read(tx, after, 1000, last)
  for _, one in ipairs(found) do
    local entry = cmsgpack.unpack(one[3])
    if entry[3] > before_ts or events == limit then
      found = {}
      break
    end
    local state = HISTORY[entry[1]] and states.load(tx, tonumber(one[2]))
    if state and HISTORY[state[STATUS]] then
      entries = entries + forgetting.forget(tx, state, false)
      events = events + 1
    end
  end
  flush(tx)
  return { events, entries, #found == 1000 and found[1000][1] or '' }
end)
