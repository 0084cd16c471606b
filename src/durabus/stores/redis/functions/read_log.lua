-- Return the entries after one position, up to and including another, in commit order. Relies on the stream.
-- Takes: after, until (or nothing), limit. Returns: whether this log has these positions, then position, id, entry,
-- data of each
register('read_log', READS, function(tx, asked)
  local after, last, limit = asked[1], asked[2] or tx.position, asked[3]
  if after > tx.position or last > tx.position then
    return { 0 }
  end
  local found = limit > 0 and log.read(tx, after, limit, last) or {}
  return log.answer(tx, found, { 1 })
end)
