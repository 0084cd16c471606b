-- Seconds until a bus may have something to claim: 0 for now, nothing if nothing is known. Relies on ready, delayed, leases.
-- asks: bus
local function time_of(member)
  return member and (struct.unpack('>d', member, #member - 15))
end

register('outlook', READS, function(tx, asked)
  local bus = asked[1]
  if #first_of(tx[READY], bus, 1) > 0 then
    return '0'
  end
  local due = time_of(first_of(tx[DELAYED], bus, 1)[1])
  local ends = time_of(first_of(tx[LEASES], bus, 1)[1])
  local instant = due and ends and math.min(due, ends) or due or ends
  return instant and string.format('%.17g', math.max(instant - tx.now, 0)) or ''
end)
