-- Find events that meet every condition, newest id first. Looks at a limited number of events in one call. Relies on
-- order, on by_bus for one bus, or on by_parent for the children of events.
-- Takes: bus, statuses, type, tags, parent_ids, created from, created until, before id, limit. Returns: the id to
-- continue below, the events
local LOOKED_AT = 1000

-- Return whether a type matches a pattern: `*` stands for one segment, a lone `*` for every type, as in
-- durabus.model.pattern.
local function matches(pattern, name)
  if pattern == '*' or pattern == name then
    return true
  end
  if not string.find(pattern, '*', 1, true) then
    return false
  end
  local wanted = string.gmatch(pattern .. '.', '([^.]*)%.')
  for actual in string.gmatch(name .. '.', '([^.]*)%.') do
    local want = wanted()
    if want ~= '*' and want ~= actual then
      return false
    end
  end
  return wanted() == nil
end

local function any_of(wanted, tags)
  for _, tag in ipairs(tags or {}) do
    if wanted[tag] then
      return true
    end
  end
  return false
end

local function set_of(list)
  local set = {}
  for _, one in ipairs(list) do
    set[one] = true
  end
  return #list > 0 and set
end

-- Return whether only live events are asked for.
local function is_live_only(statuses)
  for _, status in ipairs(statuses) do
    if status ~= 'PENDING' and status ~= 'PROCESSING' then
      return false
    end
  end
  return #statuses > 0
end

-- Return whether one of these events has a live child.
local function any_live_child(tx, parents)
  for _, count in ipairs(get_many(tx[CHILDREN], parents)) do
    if count then
      return true
    end
  end
  return false
end

-- Return the newest ids of a bus or of a parent below an id.
local function newest_of(key, name, before, limit)
  local first = '(' .. (before and by_bus(name, before) or name .. '\1')
  return ids_of(redis.call('ZREVRANGEBYLEX', key, first, '[' .. name .. '\0', 'LIMIT', 0, limit))
end

-- Return the newest children of events below an id, and the id below which there may be more, or false.
local function next_children(tx, parents, before)
  local limit, go_on, found, ids = math.max(math.floor(LOOKED_AT / #parents), 10), false, {}, {}
  for _, parent in ipairs(parents) do
    local some = newest_of(tx[BY_PARENT], parent, before, limit)
    if #some == limit then
      go_on = math.max(go_on or 0, some[limit])
    end
    for _, id in ipairs(some) do
      found[#found + 1] = id
    end
  end
  table.sort(found, function(one, other)
    return one > other
  end)
  for n, id in ipairs(found) do
    if go_on and id < go_on then
      break -- the next call looks here: another parent may have more children
    end
    ids[n] = id
  end
  return ids, go_on
end

local function next_ids(tx, bus, before)
  if bus then
    local ids = newest_of(tx[BY_BUS], bus, before, LOOKED_AT)
    return ids, #ids == LOOKED_AT and ids[#ids]
  end
  local first = before and '(' .. string.format('%d', before) or '+inf'
  local ids = redis.call('ZREVRANGEBYSCORE', tx[ORDER], first, '-inf', 'LIMIT', 0, LOOKED_AT)
  for n, id in ipairs(ids) do
    ids[n] = tonumber(id)
  end
  return ids, #ids == LOOKED_AT and ids[#ids]
end

register('find_events', READS, function(tx, asked)
  local bus, statuses, kind, tags, parents = asked[1], set_of(asked[2]), asked[3], set_of(asked[4]), #asked[5] > 0
  local from, till, before, limit = asked[6], asked[7], asked[8], asked[9]
  if parents and is_live_only(asked[2]) and not any_live_child(tx, asked[5]) then
    return { '' }
  end
  local found, size, ids, go_on = {}, 0
  if parents then
    ids, go_on = next_children(tx, asked[5], before)
  else
    ids, go_on = next_ids(tx, bus, before)
  end
  states.load_all(tx, ids)
  for _, id in ipairs(ids) do
    local state = tx.states[id]
    local meets = state
      and (not parents or not bus or state[BUS] == bus)
      and (not statuses or statuses[state[STATUS]])
      and (not from or state[CREATED] >= from)
      and (not till or state[CREATED] <= till)
    if meets and (kind or tags) then
      local head = states.head(tx, id)
      meets = (not kind or matches(kind, head[TYPE]))
        and (not tags or any_of(tags, head[TAGS]))
    end
    if meets then
      found[#found + 1] = state
      size = size + redis.call('HSTRLEN', tx[DATA], id)
      if #found == limit or size > LARGE then
        go_on = id
        break
      end
    end
  end
  return states.answer(tx, found, { go_on or '' })
end)
