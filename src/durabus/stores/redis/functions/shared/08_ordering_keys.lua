-- Ordering keys. One of the live events of a key is its front: the PROCESSING one, else the one with the smallest id.
-- Only the front is ready, delayed or leased. The others wait in `blocked`, where no claim looks. `flush` decides the
-- front once for each key that the call touched.

do -- a block: Lua allows 200 local names at a time
  local function name_of(state)
    return state[BUS] .. '\0' .. state[ORDERING_KEY]
  end

  local function touched(tx, state)
    local name = name_of(state)
    local one_key = tx.ordering_keys[name]
    if not one_key then
      one_key = { came = {}, left = {} }
      tx.ordering_keys[name] = one_key
    end
    return one_key
  end

  -- Note that the event has become PENDING.
  function ordering_keys.join(tx, state, priority, tags)
    touched(tx, state).came[state[ID]] = { state, priority, tags }
  end

  -- Note that the event has ended or was deleted.
  function ordering_keys.leave(tx, state)
    touched(tx, state).left[state[ID]] = true
  end

  function ordering_keys.is_front(tx, state)
    return not state[ORDERING_KEY] or tonumber(redis.call('HGET', tx[FRONTS], name_of(state)) or nil) == state[ID]
  end

  -- Return the first event behind the front. A member without a readable event is dropped.
  local function first_waiting(tx, name, one_key)
    local limit = 1
    for _ in pairs(one_key.left) do
      limit = limit + 1
    end
    while true do
      local members = first_of(tx[BLOCKED], name, limit)
      for _, member in ipairs(members) do
        local id = id_of(member)
        if not one_key.left[id] then
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

  local function first_pending(tx, name, one_key, front)
    local first = first_waiting(tx, name, one_key)
    if front and (not first or front < first) then
      first = front
    end
    for id in pairs(one_key.came) do
      if not first or id < first then
        first = id
      end
    end
    return first
  end

  local function settle(tx, name, one_key)
    local before = tonumber(redis.call('HGET', tx[FRONTS], name) or nil)
    local state = before and not one_key.left[before] and states.load(tx, before)
    local pending = state and state[STATUS] == 'PENDING'
    local front = before
    if not state or state[STATUS] ~= 'PROCESSING' then
      front = first_pending(tx, name, one_key, pending and before)
    end
    for id, one in pairs(one_key.came) do
      if id == front then
        queue.place(tx, unpack(one, 1, 3))
      else
        add(tx, tx[BLOCKED], by_bus(name, id))
      end
    end
    if front == before then
      return
    end
    if pending and not one_key.came[before] then
      local head = states.head(tx, before)
      queue.leave(tx, state, head[PRIORITY], head[TAGS])
      add(tx, tx[BLOCKED], by_bus(name, before))
    end
    if not front then
      unset(tx, tx[FRONTS], name)
      return
    end
    put(tx, tx[FRONTS], name, front)
    if not one_key.came[front] then
      local head = states.head(tx, front)
      drop(tx, tx[BLOCKED], by_bus(name, front))
      queue.place(tx, tx.states[front], head[PRIORITY], head[TAGS])
    end
  end

  function ordering_keys.settle(tx)
    for name, one_key in pairs(tx.ordering_keys) do
      settle(tx, name, one_key)
    end
    tx.ordering_keys = {}
  end
end
