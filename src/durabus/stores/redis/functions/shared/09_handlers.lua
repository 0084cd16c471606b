-- The results of an event's handlers, and the claims on them.

local handlers = {}

function handlers.of(tx, state)
  local id = state[ID]
  local list = tx.results[id]
  if list == nil then
    local blob = state[HANDLERS] and redis.call('HGET', tx[RESULTS], id)
    list = blob and cmsgpack.unpack(blob) or {}
    tx.results[id] = list
  end
  return list
end

function handlers.put(tx, state, list)
  local any = #list > 0
  tx.results[state[ID]] = list
  tx.changed_results[state[ID]] = list
  if state[HANDLERS] ~= any then
    state[HANDLERS] = any
    states.change(tx, state)
  end
end

function handlers.by_id(list, handler_id)
  for _, handler in ipairs(list) do
    if handler[H_ID] == handler_id then
      return handler
    end
  end
end

-- Return the handler if this claim on it may still be settled. The event is PROCESSING, or it was abandoned and has not
-- been claimed again.
function handlers.settleable(tx, state, handler_id, token, fence)
  local open = state[STATUS] == 'PROCESSING' or states.abandoned(state)
  local handler = open and handlers.by_id(handlers.of(tx, state), handler_id)
  return handler and handler[H_TOKEN] == token and handler[H_FENCE] == fence and handler
end

-- Return the handler if this claim on it may also be renewed.
function handlers.held(tx, state, handler_id, token, fence)
  return state[STATUS] == 'PROCESSING' and handlers.settleable(tx, state, handler_id, token, fence)
end

-- Return the handler if its newest settlement is this claim's, with `status`.
function handlers.settled_so(tx, state, handler_id, token, fence, status)
  local handler = handlers.by_id(handlers.of(tx, state), handler_id)
  local so = handler and not handler[H_TOKEN] and handler[H_SETTLED] == token
  return so and handler[H_FENCE] == fence and handler[H_STATUS] == status and handler
end

function handlers.lock_key(tx, state)
  return 'handler:event:' .. states.head(tx, state[ID])[EVENT_ID]
end

function handlers.free_lock(tx, state, token)
  local lock = locks.get(tx, handlers.lock_key(tx, state))
  if lock and lock[L_TOKEN] == token then
    locks.free(tx, lock)
  end
end

-- Return the handlers as they will be after `results` have replaced those with the same id.
function handlers.preview(tx, state, results)
  local list = {}
  for _, handler in ipairs(handlers.of(tx, state)) do
    list[#list + 1] = handlers.by_id(results, handler[H_ID]) or handler
  end
  for _, result in ipairs(results) do
    if not handlers.by_id(list, result[H_ID]) then
      list[#list + 1] = result
    end
  end
  return list
end

-- Replace the results of the same handlers. A handler claim that this ends frees its lock. A fence never falls.
function handlers.merge(tx, state, results)
  if #results == 0 then
    return
  end
  local list = handlers.of(tx, state)
  for _, result in ipairs(results) do
    local old = handlers.by_id(list, result[H_ID])
    result[H_TOKEN], result[H_SETTLED] = false, false
    if old then
      if old[H_TOKEN] then
        handlers.free_lock(tx, state, old[H_TOKEN])
      end
      result[H_FENCE] = math.max(result[H_FENCE], old[H_FENCE])
      for place = 1, H_SETTLED do
        old[place] = result[place]
      end
    else
      list[#list + 1] = result
    end
  end
  handlers.put(tx, state, list)
end

-- Return what the log keeps: the results without the claims, and of a large value of a step only the SHA-1 and the size.
function handlers.results(tx, state)
  local kept = {}
  for n, handler in ipairs(handlers.of(tx, state)) do
    kept[n] = { unpack(handler, 1, H_EXPIRES) }
    local value = handler[H_VALUE]
    if handler[H_STATUS] == 'KEPT' and value and #value > MAX_LOGGED_BYTES then
      kept[n][H_VALUE] = string.format('{"sha1":"%s","bytes":%d}', redis.sha1hex(value), #value)
    end
  end
  return #kept > 0 and kept
end

-- Return one error text for each UNRECOVERABLE result.
function handlers.unrecoverable(list)
  local errors = {}
  for _, handler in ipairs(list) do
    if handler[H_STATUS] == 'UNRECOVERABLE' then
      errors[#errors + 1] = handler[H_ERROR] or 'unrecoverable error'
    end
  end
  return errors
end

function handlers.all_settled(list)
  for _, handler in ipairs(list) do
    if not SETTLED_RESULT[handler[H_STATUS]] then
      return false
    end
  end
  return true
end

-- End the handler claim `token`: its lock expired and another handler took it. The attempt stays counted.
function handlers.void(tx, state, token)
  local list = handlers.of(tx, state)
  for _, handler in ipairs(list) do
    if handler[H_TOKEN] == token then
      handler[H_STATUS], handler[H_WORKER], handler[H_EXPIRES], handler[H_TOKEN] = 'PENDING', false, false, false
      handlers.put(tx, state, list)
      return
    end
  end
end
