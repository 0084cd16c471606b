-- Find events that a process holds, if it has ended. One call looks at a part of all events under a claim. Relies on
-- leases, processes.
-- Takes: incarnation; then the member of leases to continue after. Returns: the ids; the last member that the call
-- looked at, or nothing if this was all
local AT_ONCE = 500

register('events_of_process', READS, function(tx, asked, args)
  local incarnation, after, found = asked[1], args[3], {}
  if processes.lives(tx, incarnation) then
    return { found, '' }
  end
  local from = after == '' and '-' or '(' .. after
  local members = redis.call('ZRANGEBYLEX', tx[LEASES], from, '+', 'LIMIT', 0, AT_ONCE)
  local ids = ids_of(members)
  states.load_all(tx, ids)
  for _, id in ipairs(ids) do
    local state = tx.states[id]
    if state and processes.owns(incarnation, state[TOKEN]) then
      found[#found + 1] = id
    end
  end
  return { found, #members == AT_ONCE and members[AT_ONCE] or '' }
end)
