-- Take a PROCESSING event from its worker, on behalf of an administrator. Any other event is returned unchanged.
-- Takes: id or event_id, reason
register('reset_event', WRITES, function(tx, asked)
  local state = states.find(tx, asked[1])
  if state and state[STATUS] == 'PROCESSING' then
    lifecycle.reset(tx, state, asked[2])
    flush(tx)
  end
  return states.answer(tx, state and { state } or {}, {})
end)
