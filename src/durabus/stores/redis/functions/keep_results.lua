-- Write results of handlers under claims that go on. Nothing is logged.
-- Takes: id, token, fence and results of each. Returns: a code for each (0 is success)
register('keep_results', WRITES, function(tx, asked)
  local codes = {}
  for n, keep in ipairs(asked) do
    local state = states.load(tx, keep[1])
    local settles = state and lifecycle.settles(state, keep[2], keep[3])
    codes[n] = settles and 0 or (state and NOT_YOURS or NO_EVENT)
    if settles then
      handlers.merge(tx, state, keep[4])
    end
  end
  flush(tx)
  return cmsgpack.pack(codes)
end)
