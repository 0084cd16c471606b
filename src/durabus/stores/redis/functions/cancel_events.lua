-- End PENDING and PROCESSING events as CANCELLED. Any other event is returned unchanged.
-- Takes: reason, ids or event_ids. Returns: which of them are known, and their records
register('cancel_events', WRITES, function(tx, asked)
  local reason, known, found = asked[1], {}, {}
  for n, ref in ipairs(asked[2]) do
    local state = states.find(tx, ref)
    if state and LIVE[state[STATUS]] then
      if next(tx.parents) and tx.parents[states.head(tx, state[ID])[EVENT_ID]] then
        flush(tx) -- it may be due now, because its last child has ended
      end
      lifecycle.revoke(tx, state, reason)
    end
    known[n] = state and true or false
    found[#found + 1] = state or nil
  end
  flush(tx)
  return states.answer(tx, found, { cmsgpack.pack(known) })
end)
