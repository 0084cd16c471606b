-- Return dead letters, newest first. Relies on dead_letters, or on dead_by_bus for one bus.
-- Takes: bus, limit, offset. Returns: their total number, then the events
register('list_dead_letters', READS, function(tx, asked)
  local bus, limit, offset = asked[1], asked[2], asked[3]
  local key, first, last = tx[DEAD_LETTERS], '+', '-'
  if bus then
    key, first, last = tx[DEAD_BY_BUS], '(' .. bus .. '\1', '[' .. bus .. '\0'
  end
  local found = {}
  for _, id in ipairs(ids_of(redis.call('ZREVRANGEBYLEX', key, first, last, 'LIMIT', offset, limit))) do
    found[#found + 1] = states.load(tx, id) or nil
  end
  return states.answer(tx, found, { redis.call('ZLEXCOUNT', key, last, first) })
end)
