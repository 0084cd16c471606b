-- The archives keep copies of the log, and no trim passes their positions. Then: delete an event with its ids, keys, results and index members. A trim deletes its log entries too. Otherwise the
-- entries stay, and so do the data that they need.

local archives = {}

function archives.all(tx)
  local found = {}
  local saved = redis.call('HGETALL', tx[POSITIONS])
  for n = 1, #saved, 2 do
    if string.sub(saved[n], 1, 8) == 'archive:' then
      found[saved[n]] = saved[n + 1]
    end
  end
  return found
end

-- Return the smallest position of an archive, except one; without an archive, the newest position of the log.
function archives.until_position(tx, ignoring)
  local smallest = tx.position
  for name, position in pairs(archives.all(tx)) do
    if name ~= ignoring then
      smallest = math.min(smallest, tonumber(position) or 0)
    end
  end
  return smallest
end

local forgetting = {}

function forgetting.forget(tx, state, keeps_entries)
  local id, bus, status = state[ID], state[BUS], state[STATUS]
  local data = redis.call('HGET', tx[DATA], id)
  local head = states.head_of(data)
  if state[ORDERING_KEY] and (status == 'PENDING' or status == 'PROCESSING') then
    ordering_keys.leave(tx, state)
  end
  if status == 'PENDING' or status == 'PROCESSING' then
    family.leave(tx, state)
  end
  if status == 'PENDING' then
    queue.leave(tx, state, head[PRIORITY], head[TAGS])
  elseif status == 'PROCESSING' then
    queue.end_claim(tx, state)
  else
    count(tx, status, bus, -1)
    if DEAD[status] then
      drop(tx, tx[DEAD_LETTERS], by_created(state[CREATED], id))
      drop(tx, tx[DEAD_BY_BUS], by_time(bus, state[CREATED], id))
    end
  end
  if state[HANDLERS] then
    for _, handler in ipairs(handlers.of(tx, state)) do
      handlers.drop(tx, state, handler)
    end
    drop(tx, tx[RESULTS_DONE], id)
  end
  unset(tx, tx[STATE], id)
  unset(tx, tx[DATA], id)
  unset(tx, tx[IDS], head[EVENT_ID])
  unset(tx, tx[WAITING], head[EVENT_ID])
  if head[KEY] then
    unset(tx, tx[IDEMPOTENCY], bus .. '\0' .. head[KEY])
  end
  drop(tx, tx[ORDER], id)
  drop(tx, tx[BY_BUS], by_bus(bus, id))
  local positions = log.positions(state[TRAIL])
  if keeps_entries then
    put(tx, tx[DELETED], id, data)
    put(tx, tx[DELETED_TRAILS], id, state[TRAIL])
    add(tx, tx[DELETED_ORDER], id, positions[1])
  else
    log.remove(tx, positions)
  end
  tx.states[id], tx.changed[id] = false, nil
  return #positions
end

-- Walk the events of a bus from the oldest id after `after` and delete those of the history for which `may_go`
-- returns true, at most `limit`, unless an archive lacks their last entry. Returns how many were deleted, the id to
-- continue after, or false at the end, and how many were left for an archive.
function forgetting.walk(tx, bus, after, limit, may_go)
  local at_once, gone, left = 1000, 0, 0
  local archived = archives.until_position(tx)
  local from = '(' .. by_bus(bus, after)
  local members = redis.call('ZRANGEBYLEX', tx[BY_BUS], from, '(' .. bus .. '\1', 'LIMIT', 0, at_once)
  local ids = ids_of(members)
  states.load_all(tx, ids)
  for _, id in ipairs(ids) do
    if gone == limit then
      return gone, false, left
    end
    local state = tx.states[id]
    if state and HISTORY[state[STATUS]] and may_go(state) then
      if tonumber(string.match(state[TRAIL], '%d+$')) <= archived then
        forgetting.forget(tx, state, false)
        gone = gone + 1
      else
        left = left + 1
      end
    end
  end
  return gone, #ids == at_once and ids[#ids], left
end
