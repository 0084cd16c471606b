-- Give up a handler claim; the handler gets its attempt back. A repeat changes nothing.
-- Takes: id, handler id, token, fence. Returns: a code (0 is success)
register('release_handler_claim', WRITES, function(tx, asked)
  local id, handler_id, token, fence = unpack(asked)
  local state = states.load(tx, id)
  if not state then
    return NO_EVENT
  end
  local handler = handlers.settleable(tx, state, handler_id, token, fence)
  if handler then
    handler[H_STATUS], handler[H_ATTEMPTS] = 'PENDING', handler[H_ATTEMPTS] - 1
    handler[H_WORKER], handler[H_EXPIRES], handler[H_TOKEN], handler[H_SETTLED] = false, false, false, token
    handlers.put(tx, state, handlers.of(tx, state))
  elseif not handlers.settled_so(tx, state, handler_id, token, fence, 'PENDING') then
    return NOT_YOURS
  end
  handlers.free_lock(tx, state, token)
  flush(tx)
  return 0
end)
