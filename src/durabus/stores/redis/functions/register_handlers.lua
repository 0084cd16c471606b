-- Register a bus, and exactly these handlers of a node for it.
-- Takes: bus, node, handlers (id and pattern of each), kept for (or nothing)
register('register_handlers', WRITES, function(tx, asked)
  local bus, node, kept_for = asked[1], asked[2], asked[4]
  local info = registering.bus(tx, bus) or { tx.now, tx.now, false, 0 }
  local before, after, created = registering.handlers(tx, bus), {}, {}
  for _, one in ipairs(before) do
    if registering.lives(tx, one) then
      if one[R_NODE] == node then
        created[one[R_HANDLER]] = one[R_CREATED]
      else
        after[#after + 1] = one
      end
    end
  end
  local last = {}
  for _, handler in ipairs(asked[3]) do
    last[handler[1]] = handler[2]
  end
  for handler_id, pattern in pairs(last) do
    local ends = kept_for and tx.now + kept_for or false
    after[#after + 1] = { handler_id, node, pattern, created[handler_id] or tx.now, tx.now, ends }
  end
  info[B_SEEN], info[B_STOPPED] = tx.now, false
  drop(tx, tx[STOPPED], bus)
  registering.put(tx, bus, info, before, after)
  flush(tx)
  return 0
end)
