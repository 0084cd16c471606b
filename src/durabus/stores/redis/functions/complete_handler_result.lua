-- Write what a handler did. A repeat with the same status returns what the first call returned.
-- Takes: id, handler id, token, fence, status, error, value, time. Returns: the handler, or a code
register('complete_handler_result', WRITES, function(tx, asked)
  local id, handler_id, token, fence, status = unpack(asked, 1, 5)
  local state = states.load(tx, id)
  if not state then
    return NO_EVENT
  end
  local handler = handlers.settleable(tx, state, handler_id, token, fence)
  if handler then
    handler[H_STATUS], handler[H_ERROR], handler[H_VALUE], handler[H_TIME] = status, asked[6], asked[7], asked[8]
    handler[H_EXPIRES], handler[H_TOKEN], handler[H_SETTLED] = false, false, token
    handlers.put(tx, state, handlers.of(tx, state))
  else
    handler = handlers.settled_so(tx, state, handler_id, token, fence, status)
    if not handler then
      return NOT_YOURS
    end
  end
  handlers.free_lock(tx, state, token)
  flush(tx)
  return cmsgpack.pack(handler)
end)
