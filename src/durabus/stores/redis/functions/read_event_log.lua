-- Return the entries of one event, oldest first. Relies on the trail in its state.
-- Takes: id or event_id. Returns: the same as read_log
register('read_event_log', READS, function(tx, asked)
  local state = states.find(tx, asked[1])
  local found = {}
  for _, position in ipairs(state and log.positions(state[TRAIL]) or {}) do
    found[#found + 1] = log.read(tx, tonumber(position) - 1, 1, position)[1]
  end
  return log.answer(tx, found, { 1 })
end)
