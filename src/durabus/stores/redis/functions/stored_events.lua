-- Return events of a bus and type after an id, in any status, oldest first. Looks at a limited number of events in one
-- call. Relies on by_bus.
-- Takes: bus, type, after id. Returns: the id up to which it has looked, whether there are more, and the events
register('stored_events', READS, function(tx, asked)
  local bus, kind, after, at_once = asked[1], asked[2], asked[3], 1000
  local from = '(' .. by_bus(bus, after)
  local ids = ids_of(redis.call('ZRANGEBYLEX', tx[BY_BUS], from, '(' .. bus .. '\1', 'LIMIT', 0, at_once))
  local found = {}
  states.load_all(tx, ids)
  for _, id in ipairs(ids) do
    if tx.states[id] and states.head(tx, id)[TYPE] == kind then
      found[#found + 1] = tx.states[id]
    end
  end
  return states.answer(tx, found, { ids[#ids] or after, #ids == at_once and 1 or 0 })
end)
