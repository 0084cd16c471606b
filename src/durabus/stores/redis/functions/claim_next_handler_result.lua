-- Claim the first handler that is neither settled nor under an unexpired claim. Serial mode also takes the handler lock
-- of the event.
-- Takes: id, event token, event fence, handler ids, worker, token, lease, mode. Returns: the handler, or nothing
register('claim_next_handler_result', WRITES, function(tx, asked)
  local state = states.load(tx, asked[1])
  if not state or not lifecycle.holds(state, asked[2], asked[3]) then
    return ''
  end
  local handler = handlers.claim(tx, state, asked[4], unpack(asked, 5, 8))
  if not handler then
    return ''
  end
  flush(tx)
  return cmsgpack.pack(handler)
end)
