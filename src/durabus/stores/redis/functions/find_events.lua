-- Find events that meet every condition, newest id first. Looks at a limited number of events in one call. Relies on
-- order, or on by_bus for one bus.
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

local function next_ids(tx, bus, before)
  if bus then
    local first = '(' .. (before and by_bus(bus, before) or bus .. '\1')
    return ids_of(redis.call('ZREVRANGEBYLEX', tx[BY_BUS], first, '[' .. bus .. '\0', 'LIMIT', 0, LOOKED_AT))
  end
  local first = before and '(' .. string.format('%d', before) or '+inf'
  local ids = redis.call('ZREVRANGEBYSCORE', tx[ORDER], first, '-inf', 'LIMIT', 0, LOOKED_AT)
  for n, id in ipairs(ids) do
    ids[n] = tonumber(id)
  end
  return ids
end

register('find_events', READS, function(tx, asked)
  local bus, statuses, kind, tags, parents = asked[1], set_of(asked[2]), asked[3], set_of(asked[4]), set_of(asked[5])
  local from, till, before, limit = asked[6], asked[7], asked[8], asked[9]
  if parents and is_live_only(asked[2]) and not any_live_child(tx, asked[5]) then
    return { '' }
  end
  local ids, found, size = next_ids(tx, bus, before), {}, 0
  local go_on = #ids == LOOKED_AT and ids[#ids]
  states.load_all(tx, ids)
  for _, id in ipairs(ids) do
    local state = tx.states[id]
    local meets = state
      and (not statuses or statuses[state[STATUS]])
      and (not from or state[CREATED] >= from)
      and (not till or state[CREATED] <= till)
    if meets and (kind or tags or parents) then
      local head = states.head(tx, id)
      meets = (not kind or matches(kind, head[TYPE]))
        and (not tags or any_of(tags, head[TAGS]))
        and (not parents or parents[head[PARENT]])
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
