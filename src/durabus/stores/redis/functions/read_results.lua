-- Return the results of events, in the order in which they first appeared.
-- Takes: ids. Returns: a list for each
register('read_results', READS, function(tx, asked)
  local found = {}
  states.load_all(tx, asked)
  for n, id in ipairs(asked) do
    local state = tx.states[id]
    found[n] = state and handlers.records(tx, state) or NONE
  end
  return found
end)
