-- An event as it stands. Relies on ids, state and data.
-- asks: id or event_id
register('get_event', READS, function(tx, asked)
  local state = states.find(tx, asked[1])
  return states.answer(tx, state and { state } or {}, {})
end)
