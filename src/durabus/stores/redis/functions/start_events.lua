-- Record that work began. A repeat records nothing.
-- Takes: id, token, fence of each. Returns: a code for each (0 is success), then the events of the successful ones
register('start_events', WRITES, function(tx, asked)
  local codes, found = {}, {}
  for n, ref in ipairs(asked) do
    local state = states.load(tx, ref[1])
    if state and lifecycle.holds(state, ref[2], ref[3]) then
      if not state[STARTED] then
        state[STARTED], state[UPDATED] = tx.now, tx.now
        log.append(tx, state, 'STARTED', state[WORKER])
        states.change(tx, state)
      end
      codes[n] = 0
      found[#found + 1] = state
    else
      codes[n] = state and NOT_YOURS or NO_EVENT
    end
  end
  flush(tx)
  return states.answer(tx, found, { cmsgpack.pack(codes) })
end)
