-- End a PENDING or PROCESSING event as CANCELLED. Any other event is returned unchanged.
-- Takes: id or event_id, reason
register('cancel_event', WRITES, function(tx, asked)
  local state = states.find(tx, asked[1])
  if state and LIVE[state[STATUS]] then
    lifecycle.revoke(tx, state, asked[2])
    flush(tx)
  end
  return states.answer(tx, state and { state } or {}, {})
end)
