-- Delete dead letters that were created until a time, oldest first. Their log entries stay.
-- Takes: created until, bus, limit. Returns: how many were deleted
register('purge_dead_letters', FREES, function(tx, asked)
  local till, bus, limit = asked[1], asked[2], asked[3]
  if till < 0 then
    return 0
  end
  local members
  if bus then
    members = past_of(tx[DEAD_BY_BUS], bus, till, limit)
  else
    local last = '[' .. struct.pack('>d', till) .. '\255'
    members = redis.call('ZRANGEBYLEX', tx[DEAD_LETTERS], '-', last, 'LIMIT', 0, limit)
  end
  for n, id in ipairs(ids_of(members)) do
    local state = states.load(tx, id)
    if state then
      forgetting.forget(tx, state, true)
    else
      drop(tx, bus and tx[DEAD_BY_BUS] or tx[DEAD_LETTERS], members[n])
    end
  end
  flush(tx)
  return #members
end)
