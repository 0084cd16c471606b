-- The indexes in which a live event waits: ready, delayed, leased, or behind another event of its ordering key.

local queue = {}

-- Add an event to the index of ready or of delayed events.
function queue.place(tx, state, priority, tags)
  local id, bus = state[ID], state[BUS]
  if state[DUE] <= tx.now then
    add(tx, tx[READY], by_rank(bus, priority, id))
    for _, tag in ipairs(tags or {}) do
      add(tx, tx[READY_TAGS], by_rank(bus .. '\0' .. tag, priority, id))
    end
  else
    add(tx, tx[DELAYED], by_time(bus, state[DUE], id))
  end
  tx.woken[bus] = true
end

-- Put an event that has become PENDING into its index.
function queue.enter(tx, state, priority, tags)
  if state[ORDERING_KEY] then
    ordering_keys.join(tx, state, priority, tags)
  else
    queue.place(tx, state, priority, tags)
  end
end

-- Remove a PENDING event from its index.
function queue.leave(tx, state, priority, tags)
  local id, bus = state[ID], state[BUS]
  drop(tx, tx[DELAYED], by_time(bus, state[DUE], id))
  drop(tx, tx[READY], by_rank(bus, priority, id))
  for _, tag in ipairs(tags or {}) do
    drop(tx, tx[READY_TAGS], by_rank(bus .. '\0' .. tag, priority, id))
  end
  if state[ORDERING_KEY] then
    drop(tx, tx[BLOCKED], by_bus(bus .. '\0' .. state[ORDERING_KEY], id))
  end
end

-- Count a child that lives now: it was published or requeued.
function family.join(tx, state)
  local parent = state[CHILD_OF]
  if parent then
    tx.children[parent] = (tx.children[parent] or 0) + 1
  end
end

-- Count a child that has ended or was removed. Its parent may be due.
function family.leave(tx, state)
  local parent = state[CHILD_OF]
  if parent then
    tx.children[parent] = (tx.children[parent] or 0) - 1
    tx.parents[parent] = true
  end
end

-- Note that an event was released until its children have ended. A later claim has a larger fence and ends the wait.
function family.wait(tx, state, event_id)
  put(tx, tx[WAITING], event_id, cmsgpack.pack({ state[ID], state[FENCE] }))
  tx.parents[event_id] = true
end

-- Make the parents due that wait and have no live child any more. Returns whether there was any change.
function family.wake(tx)
  local parents, changed = tx.parents, false
  tx.parents = {}
  for parent in pairs(parents) do
    local waiting = redis.call('HGET', tx[WAITING], parent)
    if waiting and redis.call('HEXISTS', tx[CHILDREN], parent) == 0 then
      local id, fence = unpack(cmsgpack.unpack(waiting))
      local state = states.load(tx, id)
      if state and state[STATUS] == 'PENDING' and state[FENCE] == fence then
        local head = states.head(tx, id)
        queue.leave(tx, state, head[PRIORITY], head[TAGS])
        state[DUE] = state[UPDATED]
        queue.enter(tx, state, head[PRIORITY], head[TAGS])
        states.change(tx, state)
      end
      unset(tx, tx[WAITING], parent)
      changed = true
    end
  end
  return changed
end

-- Return how many events a token holds after one was let go. The first call reads the number, later calls count down.
local function left_of(tx, token)
  local left = tx.left[token]
  left = left and left - 1 or #held_ids(tx, token)
  tx.left[token] = left
  return left
end

-- End the claim of an event: remove its lease and its id from what the token holds. The last event of a token also
-- frees the lock that the claim took. An abandoned claim has none of these any more.
function queue.end_claim(tx, state)
  local id, token = state[ID], state[TOKEN]
  if not token then
    return
  end
  drop(tx, tx[LEASES], by_time(state[BUS], state[EXPIRES], id))
  listed(tx.let_go, token)[id] = true
  if state[LOCK_KEY] then
    local lock = locks.get(tx, state[LOCK_KEY])
    local last = left_of(tx, token) == 0
    if last and lock and lock[L_TOKEN] == token and lock[L_FENCE] == state[LOCK_FENCE] then
      locks.free(tx, lock)
      tx.woken[state[BUS]] = true
    end
    state[LOCK_KEY], state[LOCK_FENCE] = false, false
  end
  state[TOKEN] = false
end

-- Make delayed events ready that are due.
function queue.promote(tx, bus, limit)
  local due = past_of(tx[DELAYED], bus, tx.now, limit)
  local ids = ids_of(due)
  states.load_all(tx, ids)
  for n, id in ipairs(ids) do
    local state = tx.states[id]
    drop(tx, tx[DELAYED], due[n])
    if state and state[STATUS] == 'PENDING' then
      local head = states.head(tx, id)
      queue.place(tx, state, head[PRIORITY], head[TAGS])
    end
  end
end

-- Return ready members in the order of claims; with tags, only members that carry one of them.
function queue.candidates(tx, bus, tags, limit)
  if #tags == 0 then
    return first_of(tx[READY], bus, limit)
  end
  local found, seen = {}, {}
  for _, tag in ipairs(tags) do
    for _, member in ipairs(first_of(tx[READY_TAGS], bus .. '\0' .. tag, limit)) do
      local id = id_of(member)
      if not seen[id] then
        seen[id] = true
        found[#found + 1] = { (struct.unpack('>I4', member, #member - 11)), id, string.sub(member, -12) }
      end
    end
  end
  table.sort(found, function(one, other)
    if one[1] ~= other[1] then
      return one[1] < other[1]
    end
    return one[2] < other[2]
  end)
  local members = {}
  for n = 1, math.min(limit, #found) do
    members[n] = bus .. '\0' .. found[n][3]
  end
  return members
end
