-- Delete COMPLETED and CANCELLED events of a bus that ended long enough ago, oldest id first, with their log entries.
-- Relies on by_bus.
-- Takes: bus, older than, limit, after id. Returns: how many were deleted, the id to continue after, and how many were
-- left for an archive
register('trim_event_history', FREES, function(tx, asked)
  local until_ts = tx.now - asked[2]
  local gone, go_on, left = forgetting.walk(tx, asked[1], asked[4], asked[3], function(state)
    return state[UPDATED] <= until_ts
  end)
  flush(tx)
  return { gone, go_on or '', left }
end)
