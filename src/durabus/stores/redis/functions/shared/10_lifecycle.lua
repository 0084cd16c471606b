-- The rules of durabus.lifecycle.transition, one function for each row of docs/reference/lifecycle.md.

local lifecycle = {}

local PROCESS_ENDED = 'process ended'

function lifecycle.holds(state, token, fence)
  return state[TOKEN] == token and state[FENCE] == fence and state[STATUS] == 'PROCESSING'
end

-- Return whether a settlement by this claim counts: it is the newest claim, and either current or abandoned.
function lifecycle.settles(state, token, fence)
  if lifecycle.holds(state, token, fence) then
    return true
  end
  local lost = states.abandoned(state)
  return lost and lost[A_TOKEN] == token and state[FENCE] == fence
end

-- Return the status that the newest settlement led to.
function lifecycle.settled_to(state)
  local last = state[SETTLED]
  return (last[BY_ACTION] == 'RELEASED' or last[TO_RETRY]) and 'PENDING' or last[BY_ACTION]
end

-- Return the newest settlement if this call repeats it: same token, same fence, and one of these actions.
function lifecycle.repeated(state, token, fence, one, other)
  local last = state[SETTLED]
  if last and last[BY_TOKEN] == token and last[BY_FENCE] == fence then
    return (last[BY_ACTION] == one or last[BY_ACTION] == other) and last
  end
  return false
end

local function pending_again(tx, state, due, head)
  queue.end_claim(tx, state)
  state[STATUS], state[WORKER], state[UPDATED], state[DUE] = 'PENDING', false, tx.now, due
  state[PICKED], state[STARTED], state[EXPIRES] = false, false, false
  queue.enter(tx, state, head[PRIORITY], head[TAGS])
  states.change(tx, state)
end

local function add_error(state, text)
  state[ERRORS] = state[ERRORS] or {}
  table.insert(state[ERRORS], text)
end

-- Undo the abandonment before a late settlement: take the event out of its index, and do not count its attempt as lost.
local function as_held(tx, state)
  local lost = states.abandoned(state)
  if not lost then
    return
  end
  local head = states.head(tx, state[ID])
  queue.leave(tx, state, head[PRIORITY], head[TAGS])
  state[TOKEN], state[WORKER], state[PICKED], state[STARTED] = false, lost[A_WORKER], lost[A_PICKED], lost[A_STARTED]
  table.remove(state[ERRORS])
  state[ERRORS] = #state[ERRORS] > 0 and state[ERRORS]
end

-- Return the results for the log entry of an end. `handler_id` is the only handler, if it succeeded at its first call:
-- its result is not stored.
local function results_of_end(tx, state, time, handler_id)
  local kept = state[HANDLERS] and handlers.results(tx, state)
  if handler_id and not (kept and handlers.by_id(kept, handler_id)) then
    kept = kept or {}
    kept[#kept + 1] = { handler_id, 'SUCCEEDED', 1, false, false, time or false }
  end
  return kept
end

-- End an event: remove it from the queue and count it. FAILED and COMPLETED_WITH_ERRORS add it to the dead letters.
local function ended(tx, state, status, time, code, reason, handler_id)
  queue.end_claim(tx, state)
  if state[HANDLERS] then
    waits.leave(tx, state)
  end
  state[STATUS], state[UPDATED], state[EXPIRES] = status, tx.now, false
  local id, bus, dead = state[ID], state[BUS], DEAD[status]
  if state[ORDERING_KEY] then
    ordering_keys.leave(tx, state)
  end
  family.leave(tx, state)
  if state[HANDLERS] then
    handlers.end_offers(tx, state)
  end
  count(tx, status, bus, 1)
  if dead then
    add(tx, tx[DEAD_LETTERS], by_created(state[CREATED], id))
    add(tx, tx[DEAD_BY_BUS], by_time(bus, state[CREATED], id))
  elseif state[HANDLERS] then
    add(tx, tx[RESULTS_DONE], id, id)
  end
  if status == 'CANCELLED' then
    tx.woken[bus] = true -- it may have held the lock of its bus, or the ordering key of an event that waits
  end
  local errors = state[ERRORS]
  log.append(tx, state, status, state[WORKER], {
    dead and errors[#errors] or false,
    false,
    time or false,
    code or false,
    errors,
    results_of_end(tx, state, time, handler_id),
    reason,
  })
  states.change(tx, state)
end

local function settled(state, token, fence, action, retry)
  state[SETTLED] = { token, fence, action, retry }
  return state[SETTLED]
end

function lifecycle.claim(tx, state, worker, token, lease)
  state[STATUS], state[ATTEMPTS], state[FENCE] = 'PROCESSING', state[ATTEMPTS] + 1, state[FENCE] + 1
  state[WORKER], state[TOKEN], state[UPDATED], state[PICKED] = worker, token, tx.now, tx.now
  state[STARTED], state[EXPIRES] = false, tx.now + lease
  add(tx, tx[LEASES], by_time(state[BUS], state[EXPIRES], state[ID]))
  log.append(tx, state, 'PICKED', worker)
  states.change(tx, state)
end

function lifecycle.complete(tx, state, token, fence, results, errors, time, code, reason, handler_id)
  if not lifecycle.settles(state, token, fence) then
    return lifecycle.repeated(state, token, fence, 'COMPLETED', 'COMPLETED_WITH_ERRORS') or NOT_YOURS
  end
  local fatal, has_results = errors, state[HANDLERS] or #results > 0
  if has_results then
    local merged = handlers.preview(tx, state, results)
    if #fatal == 0 then
      fatal = handlers.unrecoverable(merged)
    end
    if #fatal == 0 and not handlers.all_settled(merged) then
      return NOT_DONE
    end
  end
  as_held(tx, state)
  if #fatal > 0 then
    handlers.delay_requeue(tx, state)
  end
  if has_results then
    handlers.merge(tx, state, results)
  end
  if #fatal > 0 then
    add_error(state, table.concat(fatal, '; '))
    ended(tx, state, 'COMPLETED_WITH_ERRORS', time, code, reason, handler_id)
  else
    ended(tx, state, 'COMPLETED', time, code, reason, handler_id)
  end
  return settled(state, token, fence, state[STATUS])
end

function lifecycle.fail(tx, state, token, fence, results, text, delay, time, code)
  if not lifecycle.settles(state, token, fence) then
    return lifecycle.repeated(state, token, fence, 'FAILED') or NOT_YOURS
  end
  as_held(tx, state)
  local head, worker = states.head(tx, state[ID]), state[WORKER]
  local limit = head[MAX_ATTEMPTS]
  local last = not delay or (limit and state[ATTEMPTS] >= limit)
  waits.resolve(tx, state, results)
  if last then
    handlers.delay_requeue(tx, state)
  end
  local stopped = handlers.merge(tx, state, results)
  add_error(state, text)
  if last then
    ended(tx, state, 'FAILED', time, code)
    return settled(state, token, fence, 'FAILED')
  end
  pending_again(tx, state, math.max(tx.now + delay, stopped), head)
  log.append(tx, state, 'FAILED', worker, { text, state[DUE], time or false, code or false, false, false })
  return settled(state, token, fence, 'FAILED', state[DUE])
end

function lifecycle.release(tx, state, token, fence, results, delay, reason, until_children)
  if not lifecycle.settles(state, token, fence) then
    return lifecycle.repeated(state, token, fence, 'RELEASED') or NOT_YOURS
  end
  as_held(tx, state)
  local worker, head, met = state[WORKER], states.head(tx, state[ID]), waits.resolve(tx, state, results)
  local stopped = handlers.merge(tx, state, results)
  state[ATTEMPTS] = state[ATTEMPTS] - 1
  pending_again(tx, state, math.max(met and tx.now or tx.now + delay, stopped), head)
  if until_children then
    family.wait(tx, state, head[EVENT_ID])
  end
  log.append(tx, state, 'RELEASED', worker, reason and { false, false, false, false, false, false, reason })
  return settled(state, token, fence, 'RELEASED')
end

-- End a claimed event that its worker does not begin.
function lifecycle.cancel(tx, state, token, fence, results, reason)
  if not lifecycle.settles(state, token, fence) then
    return lifecycle.repeated(state, token, fence, 'CANCELLED') or NOT_YOURS
  end
  as_held(tx, state)
  handlers.merge(tx, state, results)
  handlers.void_all(tx, state)
  ended(tx, state, 'CANCELLED', false, false, reason)
  return settled(state, token, fence, 'CANCELLED')
end

-- End a live event. The fence rises if a claim, current or abandoned, could still settle the event.
function lifecycle.revoke(tx, state, reason)
  if state[TOKEN] then
    state[FENCE] = state[FENCE] + 1
  end
  if state[STATUS] == 'PENDING' then
    local head = states.head(tx, state[ID])
    queue.leave(tx, state, head[PRIORITY], head[TAGS])
    state[TOKEN] = false
  end
  handlers.void_all(tx, state)
  ended(tx, state, 'CANCELLED', false, false, reason)
end

-- Return when an event may be claimed again whose process has ended: at once after the first end, later after more.
local function due_after_end(tx, state)
  local errors, ends = state[ERRORS] or NONE, 0
  while ends < #errors and string.sub(errors[#errors - ends], 1, #PROCESS_ENDED) == PROCESS_ENDED do
    ends = ends + 1
  end
  local delay = ends > 0 and 2 ^ math.min(ends - 1, 20) or 0
  return math.max(tx.now, math.min(tx.now + delay, state[EXPIRES]))
end

-- Take back an event whose lease is over, or whose process has ended: PENDING again, or FAILED after its last attempt.
-- The attempt stays counted.
function lifecycle.expire(tx, state, max_attempts, incarnation)
  if state[STATUS] ~= 'PROCESSING' then
    return false
  end
  if incarnation and not processes.owns(incarnation, state[TOKEN]) or not incarnation and state[EXPIRES] > tx.now then
    return false
  end
  if incarnation then
    handlers.end_claims(tx, state, incarnation)
  end
  local head, worker = states.head(tx, state[ID]), state[WORKER]
  local limit = head[MAX_ATTEMPTS] or max_attempts
  local due = incarnation and due_after_end(tx, state) or tx.now
  local text = (incarnation and PROCESS_ENDED or 'lease expired') .. ' (worker ' .. worker .. ')'
  add_error(state, text)
  if limit and state[ATTEMPTS] >= limit then
    handlers.delay_requeue(tx, state)
    ended(tx, state, 'FAILED')
  else
    local lost = { state[TOKEN], worker, state[PICKED], state[STARTED] }
    pending_again(tx, state, due, head)
    state[TOKEN] = lost
    log.append(tx, state, 'ABANDONED', worker, { text, false, false, false, false, false })
  end
  return true
end

function lifecycle.reset(tx, state, reason)
  local worker = state[WORKER]
  state[ATTEMPTS] = state[ATTEMPTS] - 1
  pending_again(tx, state, tx.now, states.head(tx, state[ID]))
  log.append(tx, state, 'RESET', worker, { false, false, false, false, false, false, reason })
end

-- Reset attempts and errors and begin a new generation. Results of handlers that succeeded stay; the others keep only
-- their fence. The event is not due while a handler that it lost with its end may still run.
function lifecycle.requeue(tx, state)
  local id, bus, head = state[ID], state[BUS], states.head(tx, state[ID])
  drop(tx, tx[DEAD_LETTERS], by_created(state[CREATED], id))
  drop(tx, tx[DEAD_BY_BUS], by_time(bus, state[CREATED], id))
  count(tx, state[STATUS], bus, -1)
  for _, handler in ipairs(handlers.of(tx, state)) do
    local stays = handler[H_STATUS] == 'SUCCEEDED' or handler[H_STATUS] == 'KEPT'
    if not stays and handler[H_FENCE] > 0 then
      handlers.begin_anew(tx, state, handler)
    elseif not stays then
      handlers.drop(tx, state, handler)
    end
  end
  state[STATUS], state[ATTEMPTS], state[GENERATION], state[ERRORS] = 'PENDING', 0, state[GENERATION] + 1, false
  state[WORKER], state[UPDATED], state[DUE] = false, tx.now, math.max(tx.now, state[DUE])
  state[PICKED], state[STARTED], state[EXPIRES] = false, false, false
  queue.enter(tx, state, head[PRIORITY], head[TAGS])
  family.join(tx, state)
  log.append(tx, state, 'REQUEUED', false)
  states.change(tx, state)
end

function lifecycle.expire_all(tx, ids, max_attempts, incarnation)
  states.load_all(tx, ids)
  table.sort(ids)
  local taken = 0
  for _, id in ipairs(ids) do
    if tx.states[id] and lifecycle.expire(tx, tx.states[id], max_attempts, incarnation) then
      taken = taken + 1
    end
  end
  return taken
end

function locks.void(tx, lost, max_attempts)
  if lost[L_EVENTS] then
    lifecycle.expire_all(tx, held_ids(tx, lost[L_TOKEN]), max_attempts)
  end
  local event_id = string.match(lost[L_KEY], '^handler:event:(.*)$')
  local owner = event_id and states.find(tx, event_id)
  if owner then
    handlers.void(tx, owner, lost[L_TOKEN])
  end
end
