-- Return the seconds until a bus may have something to claim: 0 means now, nothing means unknown. Relies on ready,
-- delayed, leases.
-- Takes: bus
local function time_of(member)
  return member and (struct.unpack('>d', member, #member - 15))
end

register('next_wakeup', READS, function(tx, asked)
  local bus = asked[1]
  if #first_of(tx[READY], bus, 1) > 0 then
    return '0'
  end
  local due = time_of(first_of(tx[DELAYED], bus, 1)[1])
  local ends = time_of(first_of(tx[LEASES], bus, 1)[1])
  local instant = due and ends and math.min(due, ends) or due or ends
  return instant and string.format('%.17g', math.max(instant - tx.now, 0)) or ''
end)
