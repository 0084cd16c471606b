-- Return the results of an event.
-- Takes: id or event_id
register('list_results', READS, function(tx, asked)
  local state = states.find(tx, asked[1])
  return state and handlers.records(tx, state) or NONE
end)
