-- Claims on the handlers of an event, and how a settlement changes their results.

-- Return the name under which OFFERED has the claims of a token. No bus has a name that begins with this byte.
function handlers.of_token(token)
  return '\1' .. token
end

-- Return the name under which OFFERED has the handler claims that were made under the lock of a serial mode.
function handlers.of_lock(key)
  return '\2' .. key
end

-- Return whether a handler that was claimed under a lock may still run: the lease of its claim is not over.
function handlers.runs_under(tx, key)
  local name = handlers.of_lock(key)
  local after = '(' .. name .. '\0' .. struct.pack('>d', tx.now) .. '\255'
  return #redis.call('ZRANGEBYLEX', tx[OFFERED], after, '(' .. name .. '\1', 'LIMIT', 0, 1) > 0
end

-- Return the events and handlers that a token has claimed, smaller id of the event first.
function handlers.held_by(tx, token)
  local ids, found = ids_of(first_of(tx[OFFERED], handlers.of_token(token), -1)), {}
  table.sort(ids)
  for n, id in ipairs(ids) do
    local state = id ~= ids[n - 1] and states.load(tx, id)
    for _, handler in ipairs(state and handlers.of(tx, state) or NONE) do
      if handler[H_TOKEN] == token then
        found[#found + 1] = { state, handler }
      end
    end
  end
  return found
end

-- Return the members of OFFERED for a handler that other workers may claim, now or later. A claimed handler also has one
-- by its token, for the repeat of the claim, and one by the lock that it was claimed under. No two handlers share one.
function handlers.offered_members(state, handler)
  local handler_id, token, lock = handler[H_ID], handler[H_TOKEN], handler[H_LOCK]
  if not (LIVE[handler[H_STATUS]] and handler[H_EXPIRES]) then
    return NONE
  end
  local members = { [by_time(state[BUS] .. '\0' .. handler_id, handler[H_EXPIRES], state[ID])] = true }
  if token then
    members[by_bus(handlers.of_token(token) .. '\0' .. handler_id, state[ID])] = true
  end
  if token and lock then
    members[by_time(handlers.of_lock(lock), handler[H_EXPIRES], state[ID]) .. handler_id] = true
  end
  return members
end

-- Return whether one of these results offers its handler to other workers.
function handlers.any_offered(list)
  for _, handler in ipairs(list) do
    if LIVE[handler[H_STATUS]] and handler[H_EXPIRES] then
      return true
    end
  end
  return false
end

function handlers.by_id(list, handler_id)
  for _, handler in ipairs(list) do
    if handler[H_ID] == handler_id then
      return handler
    end
  end
end

-- Return the handler that this claim holds: until the event ends, or another claim takes the handler.
function handlers.held(tx, state, handler_id, token, fence)
  local handler = LIVE[state[STATUS]] and handlers.get(tx, state, handler_id)
  return handler and handler[H_TOKEN] == token and handler[H_FENCE] == fence and handler
end

-- Return the first of the wanted handlers that is neither settled nor under an unexpired claim nor offered for later,
-- and whether this token holds it already.
function handlers.next_free(tx, state, wanted, token)
  for _, handler_id in ipairs(wanted) do
    local handler = handlers.get(tx, state, handler_id)
    if handler and handler[H_TOKEN] == token then
      return handler, true
    end
  end
  for _, handler_id in ipairs(wanted) do
    local handler = handlers.get(tx, state, handler_id)
      or { handler_id, 'PENDING', 0, false, false, false, 0, false, false, false, false }
    local later = LIVE[handler[H_STATUS]] and handler[H_EXPIRES] and handler[H_EXPIRES] > tx.now
    if not SETTLED_RESULT[handler[H_STATUS]] and not later then
      return handler, false
    end
  end
end

-- Claim the first of the wanted handlers that is free. Serial mode also takes the handler lock of the event.
function handlers.claim(tx, state, wanted, worker, token, lease, mode)
  local handler, own = handlers.next_free(tx, state, wanted, token)
  if not handler then
    return nil
  end
  if mode == 'serial' then
    local key = handlers.lock_key(tx, state)
    if not locks.may_claim(tx, key, token) then
      return nil
    end
    locks.take(tx, key, worker, token, lease, false, false)
    -- taking the lock may have ended the claim of another handler
    handler, own = handlers.next_free(tx, state, wanted, token)
  end
  if not own then
    handler[H_STATUS], handler[H_ATTEMPTS], handler[H_FENCE] =
      'PROCESSING', handler[H_ATTEMPTS] + 1, handler[H_FENCE] + 1
    handler[H_WORKER], handler[H_EXPIRES], handler[H_TOKEN] = worker, tx.now + lease, token
    handler[H_LOCK] = state[LOCK_KEY]
    handlers.put(tx, state, handler)
  end
  processes.saw(tx, token)
  return handler
end

-- End a handler claim with a status, or without one: then the handler is offered again after `delay`. Returns the
-- handler, or a code.
function handlers.settle(tx, claim, status, error, value, time, delay)
  local id, handler_id, token, fence = unpack(claim, 1, 4)
  local state = states.load(tx, id)
  if not state then
    return NO_EVENT
  end
  local handler = handlers.held(tx, state, handler_id, token, fence)
  if not handler then
    handler = handlers.settled_so(tx, state, handler_id, token, fence, status or 'PENDING')
    if not handler then
      return NOT_YOURS
    end
  else
    if status then
      handler[H_STATUS], handler[H_ERROR], handler[H_VALUE], handler[H_TIME] = status, error, value, time
      handler[H_EXPIRES] = false
    else
      handler[H_STATUS], handler[H_ATTEMPTS] = 'PENDING', handler[H_ATTEMPTS] - 1
      handler[H_WORKER], handler[H_EXPIRES] = false, tx.now + delay
    end
    handler[H_TOKEN], handler[H_SETTLED], handler[H_LOCK] = false, token, false
    handlers.put(tx, state, handler)
  end
  handlers.free_lock(tx, state, token)
  tx.woken[state[BUS]] = true
  return handler
end

-- Return the handler if its newest settlement is this claim's, with `status`.
function handlers.settled_so(tx, state, handler_id, token, fence, status)
  local handler = handlers.get(tx, state, handler_id)
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

-- Return whether `new` offers a handler that is offered, claimed or settled already. Each claim raises its fence.
function handlers.comes_too_late(new, old)
  if new[H_STATUS] ~= 'PENDING' or not new[H_EXPIRES] then
    return false
  end
  local offered = LIVE[old[H_STATUS]] and old[H_EXPIRES]
  return old[H_FENCE] ~= new[H_FENCE] or offered or SETTLED_RESULT[old[H_STATUS]]
end

-- Replace the results of the same handlers. A handler claim that this ends frees its lock. A fence never falls. A wait
-- that is known, or was met meanwhile, stays as it is. Returns when the last lease of these claims is over, or 0.
function handlers.merge(tx, state, results)
  local stopped = 0
  for _, result in ipairs(results) do
    local old = handlers.get(tx, state, result[H_ID])
    local stays = old and (result[H_STATUS] == 'WAITING' and STEP[old[H_STATUS]] or handlers.comes_too_late(result, old))
    result[H_TOKEN], result[H_SETTLED], result[H_LOCK] = false, false, false
    if old and not stays then
      if old[H_TOKEN] then
        stopped = math.max(stopped, old[H_EXPIRES])
        handlers.free_lock(tx, state, old[H_TOKEN])
      end
      result[H_FENCE] = math.max(result[H_FENCE], old[H_FENCE])
      for field = 1, H_LOCK do
        old[field] = result[field]
      end
    end
    if not stays then
      handlers.put(tx, state, old or result)
    end
  end
  return stopped
end

-- Make a dead letter due for a requeue only when all leases of the claims on its handlers are over: until then a worker
-- may still run a handler.
function handlers.delay_requeue(tx, state)
  for _, handler in ipairs(state[HANDLERS] and handlers.of(tx, state) or NONE) do
    if handler[H_TOKEN] then
      state[DUE] = math.max(state[DUE], handler[H_EXPIRES])
    end
  end
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
    if not SETTLED_RESULT[handler[H_STATUS]] and handler[H_STATUS] ~= 'WAITING' then
      return false
    end
  end
  return true
end

local function void(tx, state, handler, offered)
  handler[H_STATUS], handler[H_WORKER], handler[H_EXPIRES], handler[H_TOKEN] = 'PENDING', false, offered, false
  handler[H_LOCK] = false
  handlers.put(tx, state, handler)
end

-- Make the result of a handler as if it had never run. Its fence stays, because a fence never falls.
function handlers.begin_anew(tx, state, handler)
  handler[H_STATUS], handler[H_ATTEMPTS], handler[H_ERROR], handler[H_VALUE] = 'PENDING', 0, false, false
  handler[H_TIME], handler[H_WORKER], handler[H_EXPIRES] = false, false, false
  handler[H_TOKEN], handler[H_SETTLED], handler[H_LOCK] = false, false, false
  handlers.put(tx, state, handler)
end

-- End all handler claims of an event that is cancelled, and free their locks.
function handlers.void_all(tx, state)
  for _, handler in ipairs(handlers.of(tx, state)) do
    if handler[H_TOKEN] then
      handlers.free_lock(tx, state, handler[H_TOKEN])
      void(tx, state, handler, false)
    end
  end
end

-- End the leases of handler claims that belong to a process that has ended.
function handlers.end_claims(tx, state, incarnation)
  for _, handler in ipairs(handlers.of(tx, state)) do
    if processes.owns(incarnation, handler[H_TOKEN]) and handler[H_EXPIRES] and handler[H_EXPIRES] > tx.now then
      handler[H_EXPIRES] = tx.now
      handlers.put(tx, state, handler)
    end
  end
end

-- End the handler claims under a lock that another claim takes: their leases are over. They are offered again. An event
-- that has ended keeps its results: taking the lock may have ended it in this call, before OFFERED was brought up to
-- date.
function handlers.void_under(tx, key)
  local name = handlers.of_lock(key)
  for _, member in ipairs(first_of(tx[OFFERED], name, -1)) do
    local _, id, handler_id = struct.unpack('>dI8', member, #name + 2)
    local state = states.load(tx, id)
    local handler = state and LIVE[state[STATUS]] and handlers.get(tx, state, string.sub(member, handler_id))
    if handler and handler[H_LOCK] == key then
      void(tx, state, handler, 0)
    end
  end
end

-- End the handler claim `token`: its lock expired and another handler took it. The attempt stays counted, and the
-- handler is offered again.
function handlers.void(tx, state, token)
  for _, handler in ipairs(handlers.of(tx, state)) do
    if handler[H_TOKEN] == token then
      void(tx, state, handler, 0)
      return
    end
  end
end
