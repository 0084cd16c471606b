-- Return events as they are now. Relies on ids, state and data.
-- Takes: ids or event_ids. Returns: which of them are known, and their records
register('get_events', READS, function(tx, asked)
  local known, found = {}, {}
  for n, ref in ipairs(asked) do
    local state = states.find(tx, ref)
    known[n] = state and true or false
    found[#found + 1] = state or nil
  end
  return states.answer(tx, found, { cmsgpack.pack(known) })
end)
