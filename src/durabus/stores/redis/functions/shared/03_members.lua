-- Members of the shared, lexically ordered indexes: the bus, a zero byte, then numbers as big-endian bytes, which sort
-- like the numbers. A bus is a range of an index and has no key of its own. Names have no control characters.

local function by_bus(bus, id)
  return bus .. '\0' .. struct.pack('>I8', id)
end

local function by_rank(bus, priority, id)
  return bus .. '\0' .. struct.pack('>I4I8', 2147483648 - priority, id)
end

local function by_time(bus, time, id)
  return bus .. '\0' .. struct.pack('>dI8', time, id)
end

local function by_created(created, id)
  return struct.pack('>dI8', created, id)
end

local function id_of(member)
  return (struct.unpack('>I8', member, #member - 7))
end

local function ids_of(members)
  local ids = {}
  for n, member in ipairs(members) do
    ids[n] = id_of(member)
  end
  return ids
end

-- Compare two strings by bytes. Lua's own `<` follows the locale of the server.
local function is_before(one, other)
  for place = 1, math.min(#one, #other) do
    local a, b = string.byte(one, place), string.byte(other, place)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- Return the first members of a bus (or of a bus and a tag), in order.
local function first_of(key, bus, limit)
  return redis.call('ZRANGEBYLEX', key, '[' .. bus .. '\0', '(' .. bus .. '\1', 'LIMIT', 0, limit)
end

-- Return the first members of a bus whose time is not after `now`.
local function past_of(key, bus, now, limit)
  local last = '[' .. bus .. '\0' .. struct.pack('>d', now) .. '\255'
  return redis.call('ZRANGEBYLEX', key, '[' .. bus .. '\0', last, 'LIMIT', 0, limit)
end

local function count_of(key, bus)
  return redis.call('ZLEXCOUNT', key, '[' .. bus .. '\0', '(' .. bus .. '\1')
end

local function is_live(tx, bus)
  for _, key in ipairs({ tx[READY], tx[LEASES], tx[DELAYED] }) do
    if #first_of(key, bus, 1) > 0 then
      return true
    end
  end
  return false
end

-- Return the first bus after `after` that has a member in an index.
local function next_bus(key, after)
  local from = after == '' and '-' or '(' .. after .. '\1'
  local member = redis.call('ZRANGEBYLEX', key, from, '+', 'LIMIT', 0, 1)[1]
  return member and string.match(member, '^[^%z]*')
end
