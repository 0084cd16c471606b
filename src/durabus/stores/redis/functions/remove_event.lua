-- Delete an event, whatever its status. Its log entries stay.
-- Takes: id or event_id
register('remove_event', FREES, function(tx, asked)
  local state = states.find(tx, asked[1])
  if not state then
    return 0
  end
  forgetting.forget(tx, state, true)
  flush(tx)
  return 1
end)
