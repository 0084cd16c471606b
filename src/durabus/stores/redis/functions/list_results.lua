-- Return the handlers of an event as they are stored.
-- Takes: id or event_id
register('list_results', READS, function(tx, asked)
  local state = states.find(tx, asked[1])
  return state and state[HANDLERS] and redis.call('HGET', tx[RESULTS], state[ID]) or ''
end)
