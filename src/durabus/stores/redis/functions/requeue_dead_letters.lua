-- Put dead letters back into the queue, all or none.
-- Takes: ids or event_ids. Returns: 0 and the events, or the number of the refused one and its status ('' if it is
-- unknown)
register('requeue_dead_letters', WRITES, function(tx, asked)
  local found = {}
  for n, ref in ipairs(asked) do
    local state = states.find(tx, ref)
    local is_repeat = state and state[GENERATION] > 0 and LIVE[state[STATUS]]
    if not state or not (DEAD[state[STATUS]] or is_repeat) then
      return { n, state and state[STATUS] or '' }
    end
    found[n] = state
  end
  for _, state in ipairs(found) do
    if DEAD[state[STATUS]] then
      lifecycle.requeue(tx, state)
    end
  end
  flush(tx)
  return states.answer(tx, found, { 0, '' })
end)
