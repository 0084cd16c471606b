-- Write results of handlers under claims on events or on handlers that go on, and store children. Nothing else is logged.
-- Takes: id, token, fence, results, children and handler id (or nothing) of each. Returns: a code for each (0 is success)
register('keep_results', WRITES, function(tx, asked, args)
  local codes, children = {}, {}
  for n, keep in ipairs(asked) do
    local state = states.load(tx, keep[1])
    local settles = state
    if state and keep[6] then
      settles = handlers.held(tx, state, keep[6], keep[2], keep[3])
    elseif state then
      settles = lifecycle.settles(state, keep[2], keep[3])
    end
    codes[n] = settles and 0 or (state and NOT_YOURS or NO_EVENT)
    if settles then
      handlers.merge(tx, state, keep[4])
      adding.collect(keep[5], children)
      if handlers.any_offered(keep[4]) or (keep[6] and handlers.by_id(keep[4], keep[6])) then
        tx.woken[state[BUS]] = true
      end
    end
  end
  adding.add_children(tx, children, args)
  flush(tx)
  return cmsgpack.pack(codes)
end)
