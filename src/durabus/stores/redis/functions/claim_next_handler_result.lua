-- Claim the first handler that is neither settled nor under an unexpired claim. Serial mode also takes the handler lock
-- of the event.
-- Takes: id, event token, event fence, handler ids, worker, token, lease, mode. Returns: the handler, or nothing
local function next_free(tx, state, wanted, token)
  local list = handlers.of(tx, state)
  for _, handler_id in ipairs(wanted) do
    local handler = handlers.by_id(list, handler_id)
    if handler and handler[H_TOKEN] == token then
      return handler, true
    end
  end
  for _, handler_id in ipairs(wanted) do
    local handler = handlers.by_id(list, handler_id)
      or { handler_id, 'PENDING', 0, false, false, false, 0, false, false, false, false }
    local held = handler[H_STATUS] == 'PROCESSING' and handler[H_EXPIRES] and handler[H_EXPIRES] > tx.now
    if not SETTLED_RESULT[handler[H_STATUS]] and not held then
      return handler, false
    end
  end
end

register('claim_next_handler_result', WRITES, function(tx, asked)
  local state, wanted, worker, token, lease = states.load(tx, asked[1]), asked[4], asked[5], asked[6], asked[7]
  if not state or not lifecycle.holds(state, asked[2], asked[3]) then
    return ''
  end
  local handler, own = next_free(tx, state, wanted, token)
  if not handler then
    return ''
  end
  if asked[8] == 'serial' then
    local key = handlers.lock_key(tx, state)
    if not locks.may_claim(tx, key, token) then
      return ''
    end
    locks.take(tx, key, worker, token, lease, false, false)
    -- taking the lock may have ended the claim of another handler
    handler, own = next_free(tx, state, wanted, token)
  end
  if not own then
    local list = handlers.of(tx, state)
    if not handlers.by_id(list, handler[H_ID]) then
      list[#list + 1] = handler
    end
    handler[H_STATUS], handler[H_ATTEMPTS], handler[H_FENCE] =
      'PROCESSING', handler[H_ATTEMPTS] + 1, handler[H_FENCE] + 1
    handler[H_WORKER], handler[H_EXPIRES], handler[H_TOKEN] = worker, tx.now + lease, token
    handlers.put(tx, state, list)
  end
  flush(tx)
  return cmsgpack.pack(handler)
end)
