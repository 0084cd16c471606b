-- One call is one unit of work. A function first decides everything, then `flush` writes it: a call that fails before
-- that has written nothing. `flush` removes members before it adds members.

local ordering_keys = {} -- filled in by 08_ordering_keys
local family = {} -- filled in by 07_queue
local handlers = {} -- filled in by 08_results and 09_handlers
local waits = {} -- filled in by 15_waits

local function begin(keys, args)
  local tx = keys
  local meta = redis.call('HMGET', tx[META], 'schema', 'id', 'position', 'lock_fence', 'revision')
  if meta[1] ~= SCHEMA then
    return nil, redis.error_reply(meta[1] and 'DURABUSSCHEMA ' .. meta[1] or 'DURABUSGONE')
  end
  tx.id, tx.position = tonumber(meta[2]), tonumber(meta[3])
  tx.lock_fence, tx.revision = tonumber(meta[4]), tonumber(meta[5])
  if args[1] == '' then
    local time = redis.call('TIME')
    tx.now = tonumber(time[1]) + tonumber(time[2]) / 1000000
  else
    tx.now = tonumber(args[1])
  end
  tx.states, tx.results, tx.locks = {}, {}, {}
  tx.changed, tx.changed_results, tx.changed_locks, tx.packed = {}, {}, {}, {}
  tx.entries, tx.cut, tx.blocks, tx.moved = {}, {}, {}, false
  tx.dropped, tx.unset, tx.set, tx.added = {}, {}, {}, {}
  tx.counted, tx.granted, tx.let_go, tx.left, tx.woken, tx.ordering_keys = {}, {}, {}, {}, {}, {}
  tx.children, tx.parents = {}, {}
  return tx
end

-- Run a command with many arguments, in slices that fit on the stack.
local function in_slices(command, key, list)
  local count = #list
  for first = 1, count, SLICE do
    redis.call(command, key, unpack(list, first, math.min(first + SLICE - 1, count)))
  end
end

local function get_many(key, fields)
  local found = {}
  local count = #fields
  for first = 1, count, SLICE do
    local last = math.min(first + SLICE - 1, count)
    local part = redis.call('HMGET', key, unpack(fields, first, last))
    for n = 1, last - first + 1 do
      found[first + n - 1] = part[n]
    end
  end
  return found
end

local function listed(lists, key)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  return list
end

local function put(tx, key, field, value)
  local list = listed(tx.set, key)
  local last = #list
  list[last + 1], list[last + 2] = field, value
end

local function unset(tx, key, field)
  local list = listed(tx.unset, key)
  list[#list + 1] = field
end

local function add(tx, key, member, score)
  local list = listed(tx.added, key)
  local last = #list
  list[last + 1], list[last + 2] = score or 0, member
end

local function drop(tx, key, member)
  local list = listed(tx.dropped, key)
  list[#list + 1] = member
end

local function count(tx, status, bus, change)
  local buses = listed(tx.counted, status)
  buses[bus] = (buses[bus] or 0) + change
end

local function add_to_counts(key, counts)
  for field, change in pairs(counts) do
    if change ~= 0 and redis.call('HINCRBY', key, field, change) == 0 then
      redis.call('HDEL', key, field)
    end
  end
end

local function write_counts(tx)
  for status, buses in pairs(tx.counted) do
    local changes, all = {}, 0
    for bus, change in pairs(buses) do
      changes[status .. '\0' .. bus] = change
      all = all + change
    end
    changes[status] = all
    add_to_counts(tx[COUNTS], changes)
  end
  add_to_counts(tx[LOG_BLOCKS], tx.blocks)
  add_to_counts(tx[CHILDREN], tx.children)
end

-- Return the ids that a token holds, without those that this call has let go.
local function held_ids(tx, token)
  local gone, left = tx.let_go[token] or NONE, {}
  for id in string.gmatch(redis.call('HGET', tx[HELD], token) or '', '%d+') do
    if not gone[tonumber(id)] then
      left[#left + 1] = tonumber(id)
    end
  end
  return left
end

local function write_held(tx)
  for token in pairs(tx.let_go) do
    local left = held_ids(tx, token)
    if #left > 0 then
      redis.call('HSET', tx[HELD], token, table.concat(left, ','))
    else
      redis.call('HDEL', tx[HELD], token)
    end
  end
  for token, ids in pairs(tx.granted) do
    redis.call('HSET', tx[HELD], token, table.concat(ids, ','))
  end
  tx.let_go, tx.left, tx.granted = {}, {}, {}
end

local function write_records(tx)
  for id, state in pairs(tx.changed) do
    local blob = cmsgpack.pack(state)
    tx.packed[id] = blob
    put(tx, tx[STATE], id, blob)
  end
  handlers.write(tx)
  for key in pairs(tx.changed_locks) do
    local lock = tx.locks[key]
    if lock then
      put(tx, tx[LOCKS], key, cmsgpack.pack(lock))
      add(tx, tx[LOCK_ENDS], key, lock[L_EXPIRES])
    else
      unset(tx, tx[LOCKS], key)
      drop(tx, tx[LOCK_ENDS], key)
    end
    if lock and lock[L_TOKEN] then
      add(tx, tx[LOCK_ORDER], key)
    else
      drop(tx, tx[LOCK_ORDER], key)
    end
  end
  tx.changed, tx.changed_locks = {}, {}
end

local flush
function flush(tx)
  ordering_keys.settle(tx)
  -- The log comes first: if another program wrote to the stream, Redis refuses our entry, and nothing else is written.
  local entries = tx.entries
  for n = 1, #entries, 3 do
    redis.call('XADD', tx[LOG], entries[n] .. '-0', 'i', entries[n + 1], 'e', entries[n + 2])
  end
  write_records(tx)
  for key, list in pairs(tx.dropped) do
    in_slices('ZREM', key, list)
  end
  for key, list in pairs(tx.unset) do
    in_slices('HDEL', key, list)
  end
  for key, list in pairs(tx.set) do
    in_slices('HSET', key, list)
  end
  for key, list in pairs(tx.added) do
    in_slices('ZADD', key, list)
  end
  in_slices('XDEL', tx[LOG], tx.cut)
  if #tx.cut > 0 and redis.call('XLEN', tx[LOG]) == 0 then
    redis.call('DEL', tx[LOG]) -- Redis keeps an empty stream, unlike other empty keys; meta holds the last position
  end
  write_held(tx)
  write_counts(tx)
  if tx.moved then
    redis.call('HSET', tx[META],
      'id', tx.id, 'position', tx.position, 'lock_fence', tx.lock_fence, 'revision', tx.revision)
  end
  for channel in pairs(tx.woken) do
    redis.pcall('SPUBLISH', tx[HINTS] .. channel, '') -- pcall: a hint that fails must not fail the call
  end
  tx.dropped, tx.unset, tx.set, tx.added = {}, {}, {}, {}
  tx.entries, tx.cut, tx.blocks, tx.moved = {}, {}, {}, false
  tx.counted, tx.woken, tx.children = {}, {}, {}
  -- Only now are the numbers of children known, and the new events in the indexes. This is a second unit of the same
  -- call, so no caller sees the first.
  local woken, met = family.wake(tx), waits.meet(tx)
  if woken or met then
    flush(tx)
  end
end

-- Register a function of the library. `run(tx, asked, args)` does its work; the frame is the same for all functions.
local function register(name, flags, run)
  redis.register_function({
    function_name = LIBRARY .. '_' .. name,
    flags = flags,
    callback = function(keys, args)
      local tx, refused = begin(keys, args)
      if not tx then
        return refused
      end
      return run(tx, cmsgpack.unpack(args[2]), args)
    end,
  })
end

local READS = { 'no-writes' }
local WRITES = {}
local FREES = { 'allow-oom' } -- the function frees memory, so it must run even when the server is out of memory
