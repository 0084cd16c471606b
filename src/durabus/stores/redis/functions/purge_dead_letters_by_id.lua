-- Delete those of these events that are dead letters. Their log entries stay.
-- Takes: ids. Returns: the ids of the deleted events
register('purge_dead_letters_by_id', FREES, function(tx, asked)
  local gone = {}
  for _, id in ipairs(asked) do
    local state = states.load(tx, id)
    if state and DEAD[state[STATUS]] then
      forgetting.forget(tx, state, true)
      gone[#gone + 1] = id
    end
  end
  flush(tx)
  return gone
end)
