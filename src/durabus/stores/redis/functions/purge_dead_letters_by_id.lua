-- Deletes those of some events that are dead letters; their log entries stay.
-- asks: ids; answers the ids of those that went
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
