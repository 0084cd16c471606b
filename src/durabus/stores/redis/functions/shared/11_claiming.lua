-- The work of `claim_next_events`, which is also the second half of `settle_events`.

local claiming = {}

do -- a block: Lua allows 200 local names at a time
  local AT_ONCE = 1000 -- maximum number of leases that one claim ends, and of delayed events that it makes ready
  local DATA_AT_ONCE = 100

  local function held_by(tx, token)
    local ids, found = held_ids(tx, token), {}
    states.load_all(tx, ids)
    for _, id in ipairs(ids) do
      local state = tx.states[id]
      if state and state[TOKEN] == token and state[STATUS] == 'PROCESSING' then
        found[#found + 1] = state
      end
    end
    return found
  end

  local function lock_key(mode, bus)
    if mode == 'bus-serial' then
      return 'event:bus:' .. bus
    end
    return mode == 'global-serial' and 'event:global' or nil
  end

  -- Drop a member whose event is missing or damaged.
  local function drop_stray(tx, member, request)
    for _, tag in ipairs(request.tags) do
      drop(tx, tx[READY_TAGS], request.bus .. '\0' .. tag .. '\0' .. string.sub(member, -12))
    end
  end

  -- Return the states of candidates and put their data into tx.data. Ends early when the data grow large.
  local function read_candidates(tx, members, request)
    local found, size = {}, 0
    tx.data = {}
    for first = 1, #members, DATA_AT_ONCE do
      local ids = {}
      for n = first, math.min(first + DATA_AT_ONCE - 1, #members) do
        ids[#ids + 1] = id_of(members[n])
      end
      states.load_all(tx, ids)
      local data = get_many(tx[DATA], ids)
      for n, id in ipairs(ids) do
        local state = tx.states[id]
        if size > LARGE then
          return found
        end
        drop(tx, tx[READY], members[first + n - 1])
        if not state or not data[n] then
          drop_stray(tx, members[first + n - 1], request)
        elseif state[STATUS] == 'PENDING' then
          tx.data[id] = data[n]
          size = size + #data[n]
          found[#found + 1] = state
        end
      end
    end
    return found
  end

  -- Return the member of the requested event if it may be claimed.
  local function asked_for(tx, request)
    local state = states.find(tx, request.event_id)
    if
      not state
      or state[BUS] ~= request.bus
      or state[STATUS] ~= 'PENDING'
      or state[DUE] > tx.now
      or not ordering_keys.is_front(tx, state)
    then
      return {}
    end
    -- The event is due, but it may still be among the delayed ones: one call makes at most AT_ONCE of them ready.
    drop(tx, tx[DELAYED], by_time(state[BUS], state[DUE], state[ID]))
    return { by_rank(state[BUS], states.head(tx, state[ID])[PRIORITY], state[ID]) }
  end

  local function candidates(tx, request, limit)
    if request.event_id then
      return asked_for(tx, request)
    end
    return queue.candidates(tx, request.bus, request.tags, limit)
  end

  local function grant(tx, state, request)
    local id, bus = state[ID], state[BUS]
    if state[TAGGED] then
      local head = states.head_of(tx.data[id])
      for _, tag in ipairs(head[TAGS]) do
        drop(tx, tx[READY_TAGS], by_rank(bus .. '\0' .. tag, head[PRIORITY], id))
      end
    end
    lifecycle.claim(tx, state, request.worker, request.token, request.lease)
    local held = listed(tx.granted, request.token)
    held[#held + 1] = id
  end

  local function claim(tx, request)
    local found = held_by(tx, request.token)
    if #found > 0 then
      processes.saw(tx, request.token)
      flush(tx)
      return found
    end
    local bus = request.bus
    lifecycle.expire_all(tx, ids_of(past_of(tx[LEASES], bus, tx.now, AT_ONCE)), request.max_attempts)
    queue.promote(tx, bus, math.max(AT_ONCE, request.limit))
    flush(tx)
    local key, limit = lock_key(request.mode, bus), request.limit
    if limit < 1 or (key and (not locks.may_claim(tx, key, request.token) or handlers.runs_under(tx, key))) then
      return {}
    end
    found = read_candidates(tx, candidates(tx, request, limit), request)
    local lock = key and #found > 0 and locks.take(
      tx, key, request.worker, request.token, request.lease, true, false, request.max_attempts
    )
    if lock then
      handlers.void_under(tx, key)
    end
    for _, state in ipairs(found) do
      if lock then
        state[LOCK_KEY], state[LOCK_FENCE] = key, lock[L_FENCE]
      end
      grant(tx, state, request)
    end
    if #found > 0 then
      processes.saw(tx, request.token)
    end
    flush(tx)
    return found
  end

  -- Append the revision of the bus's handlers to a reply, then state, data and results of each claim.
  function claiming.answer(tx, asked, answer)
    local request = {
      bus = asked[1],
      worker = asked[2],
      token = asked[3],
      limit = asked[4],
      lease = asked[5],
      mode = asked[6],
      tags = asked[7],
      max_attempts = asked[8],
      event_id = asked[9],
    }
    local found = claim(tx, request)
    local bus = redis.call('HGET', tx[BUSES], request.bus)
    answer[#answer + 1] = bus and string.format('%d', cmsgpack.unpack(bus)[B_REVISION]) or ''
    local last, data = #answer, tx.data or NONE
    for _, state in ipairs(found) do
      local id = state[ID]
      answer[last + 1] = tx.packed[id] or redis.call('HGET', tx[STATE], id)
      answer[last + 2] = data[id] or redis.call('HGET', tx[DATA], id)
      answer[last + 3] = state[HANDLERS] and handlers.records(tx, state) or ''
      last = last + 3
    end
    return answer
  end
end
