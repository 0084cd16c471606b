-- Ordering keys. Of the live events of a key one is in front: the one that is worked on, else the one with the smallest
-- id. Only that one is ready, delayed or leased; the others wait in `blocked`, so no claim ever looks at them. Who is in
-- front is decided once for each key that a call touched, when the call writes.

local function name_of(state)
  return state[BUS] .. '\0' .. state[LINE]
end

local function touched(tx, state)
  local name = name_of(state)
  local line = tx.lines[name]
  if not line then
    line = { came = {}, left = {} }
    tx.lines[name] = line
  end
  return line
end

-- the event is PENDING now
function lines.join(tx, state, priority, tags)
  touched(tx, state).came[state[ID]] = { state, priority, tags }
end

-- the event has ended, or is gone
function lines.leave(tx, state)
  touched(tx, state).left[state[ID]] = true
end

function lines.is_front(tx, state)
  return not state[LINE] or tonumber(redis.call('HGET', tx[FRONTS], name_of(state)) or nil) == state[ID]
end

-- The first that waits behind the front. A member without its event, as after somebody damaged its records, is dropped.
local function first_waiting(tx, name, line)
  local limit = 1
  for _ in pairs(line.left) do
    limit = limit + 1
  end
  while true do
    local members = first_of(tx[BLOCKED], name, limit)
    for _, member in ipairs(members) do
      local id = id_of(member)
      if not line.left[id] then
        local state = states.load(tx, id)
        if state and state[STATUS] == 'PENDING' then
          return id
        end
        drop(tx, tx[BLOCKED], member)
      end
    end
    if #members < limit then
      return nil
    end
    limit = 2 * limit
  end
end

local function first_pending(tx, name, line, front)
  local first = first_waiting(tx, name, line)
  if front and (not first or front < first) then
    first = front
  end
  for id in pairs(line.came) do
    if not first or id < first then
      first = id
    end
  end
  return first
end

local function settle(tx, name, line)
  local before = tonumber(redis.call('HGET', tx[FRONTS], name) or nil)
  local state = before and not line.left[before] and states.load(tx, before)
  local pending = state and state[STATUS] == 'PENDING'
  local front = before
  if not state or state[STATUS] ~= 'PROCESSING' then
    front = first_pending(tx, name, line, pending and before)
  end
  for id, one in pairs(line.came) do
    if id == front then
      queue.place(tx, unpack(one, 1, 3))
    else
      add(tx, tx[BLOCKED], by_bus(name, id))
    end
  end
  if front == before then
    return
  end
  if pending and not line.came[before] then
    local head = states.head(tx, before)
    queue.leave(tx, state, head[PRIORITY], head[TAGS])
    add(tx, tx[BLOCKED], by_bus(name, before))
  end
  if not front then
    unset(tx, tx[FRONTS], name)
    return
  end
  put(tx, tx[FRONTS], name, front)
  if not line.came[front] then
    local head = states.head(tx, front)
    drop(tx, tx[BLOCKED], by_bus(name, front))
    queue.place(tx, tx.states[front], head[PRIORITY], head[TAGS])
  end
end

function lines.settle(tx)
  for name, line in pairs(tx.lines) do
    settle(tx, name, line)
  end
  tx.lines = {}
end
