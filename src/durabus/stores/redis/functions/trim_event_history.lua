-- Forgets COMPLETED events of a bus, with their log entries, that ended long enough ago; oldest id first. Relies on by_bus.
-- asks: bus, older than, limit, after id; answers how many went, and after which id to go on
register('trim_event_history', FREES, function(tx, asked)
  local until_ts = tx.now - asked[2]
  local gone, go_on = forgetting.walk(tx, asked[1], asked[4], asked[3], function(state)
    return state[UPDATED] <= until_ts
  end)
  flush(tx)
  return { gone, go_on or '' }
end)
