-- Delete the results of COMPLETED and CANCELLED events, oldest id first. Relies on results_done.
-- Takes: limit. Returns: how many results were deleted
register('cleanup_results', FREES, function(tx, asked)
  local limit, gone = asked[1], 0
  local ids = redis.call('ZRANGE', tx[RESULTS_DONE], 0, limit - 1)
  for _, text in ipairs(ids) do
    local state = states.load(tx, tonumber(text))
    local list = state and handlers.of(tx, state) or NONE
    local last = math.min(#list, limit - gone)
    for n = 1, last do
      handlers.drop(tx, state, list[n])
    end
    gone = gone + last
    if last == #list then
      drop(tx, tx[RESULTS_DONE], text)
    end
    if gone >= limit then
      break
    end
  end
  flush(tx)
  return gone
end)
