-- Delete the registrations of a handler on every node.
-- Takes: bus, handler id. Returns: 1 if it was registered
register('unregister_handler', WRITES, function(tx, asked)
  local bus, info = asked[1], registering.bus(tx, asked[1])
  if not info then
    return 0
  end
  local before, after, known = registering.handlers(tx, bus), {}, 0
  for _, one in ipairs(before) do
    if registering.lives(tx, one) then
      if one[R_HANDLER] == asked[2] then
        known = 1
      else
        after[#after + 1] = one
      end
    end
  end
  registering.put(tx, bus, info, before, after)
  flush(tx)
  return known
end)
