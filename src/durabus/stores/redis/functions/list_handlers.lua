-- Return the handlers of a bus whose registration has not ended, and the revision of the list.
-- Takes: bus. Returns: the revision ('' for an unknown bus), the handlers
register('list_handlers', READS, function(tx, asked)
  local info, live = registering.bus(tx, asked[1]), {}
  for _, one in ipairs(info and registering.handlers(tx, asked[1]) or {}) do
    if registering.lives(tx, one) then
      live[#live + 1] = one
    end
  end
  return { info and string.format('%d', info[B_REVISION]) or '', cmsgpack.pack(live) }
end)
