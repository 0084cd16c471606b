-- Waits: results with the status WAITING, whose value is a condition (durabus.model.wait). The index `waits` has a member
-- for each of them: shape 1 key 1 id (8 bytes) result. Shapes have no byte 1, and a key says how long its texts are.

-- The functions are fields, because Lua allows 200 local names at a time.

-- places in an event's data
waits.METADATA, waits.TAGS, waits.PARENT, waits.PAYLOAD = 4, 5, 8, 10

function waits.decoded(text)
  local ok, value = pcall(cjson.decode, text)
  return ok and value
end

-- Return the condition of a result, or nil if it waits for nothing.
function waits.condition(handler)
  local wait = handler[H_STATUS] == 'WAITING' and handler[H_VALUE] and waits.decoded(handler[H_VALUE])
  return type(wait) == 'table' and wait.shape and wait.key and wait or nil
end

-- Return the member of the index for a result that waits.
function waits.members(id, handler)
  local wait = waits.condition(handler)
  return wait and { [wait.shape .. '\1' .. wait.key .. '\1' .. struct.pack('>I8', id) .. handler[H_ID]] = true } or NONE
end

-- Return the values of the named fields as one text, or nil: see durabus.model.wait.key_of.
function waits.key_of(payload, names)
  if #names > 0 and type(payload) ~= 'table' then
    return nil
  end
  local parts = {}
  for n, name in ipairs(names) do
    local value = payload[name]
    local kind = type(value)
    if value == cjson.null then
      parts[n] = 'z'
    elseif kind == 'boolean' then
      parts[n] = value and 't' or 'f'
    elseif kind == 'number' then
      parts[n] = string.format('n%.17g;', value + 0)
    elseif kind == 'string' then
      parts[n] = 's' .. #value .. ':' .. value
    else
      return nil
    end
  end
  return table.concat(parts)
end

function waits.names_of(shape)
  return cjson.decode(string.match(shape, '[^\n]*$'))
end

function waits.quoted(text)
  return '"' .. string.gsub(text, '[\\"]', '\\%0') .. '"'
end

-- Return the memo of a wait that an event met: see durabus.model.wait.memo_of.
function waits.memo_of(state, said)
  local tags = {}
  for n, tag in ipairs(said[waits.TAGS] or NONE) do
    tags[n] = waits.quoted(tag)
  end
  return string.format('{"event":{"id":%d,"event_id":"%s","type":', state[ID], said[EVENT_ID])
    .. waits.quoted(said[TYPE])
    .. string.format(',"created_ms":%d,"parent_id":', math.floor(state[CREATED] * 1000 + 0.5))
    .. (said[waits.PARENT] and waits.quoted(said[waits.PARENT]) or 'null')
    .. ',"tags":['
    .. table.concat(tags, ',')
    .. '],"metadata":'
    .. (said[waits.METADATA] or 'null')
    .. ',"payload":'
    .. said[waits.PAYLOAD]
    .. '}}'
end

function waits.in_time(wait, state)
  local last = wait['until']
  return not last or last == cjson.null or state[CREATED] < last
end

-- Return the memo of the first stored event after `looked` that meets a wait: a cancelled one does not. Relies on by_bus.
function waits.search(tx, waiter, wait, looked)
  local bus, names, at_once = waiter[BUS], waits.names_of(wait.shape), 1000
  repeat
    local from = '(' .. by_bus(bus, looked)
    local ids = ids_of(redis.call('ZRANGEBYLEX', tx[BY_BUS], from, '(' .. bus .. '\1', 'LIMIT', 0, at_once))
    for _, id in ipairs(ids) do
      local data = redis.call('HGET', tx[DATA], id)
      local state = states.head_of(data)[TYPE] == wait.type and states.load(tx, id)
      if state and state[STATUS] ~= 'CANCELLED' and waits.in_time(wait, state) then
        local said = cmsgpack.unpack(string.sub(data, AFTER_MARK))
        if waits.key_of(waits.decoded(said[waits.PAYLOAD]), names) == wait.key then
          return waits.memo_of(state, said)
        end
      end
      looked = id
    end
  until #ids < at_once
  return nil
end

-- Look at the waits that a settlement brings, before it is merged. A known wait stays as it is. In the places of the
-- claim, a new one brings the memo of a stored event that meets it, or the id up to which the caller has looked for
-- one. Returns whether any wait is met.
function waits.resolve(tx, state, results)
  local met = false
  for _, result in ipairs(results) do
    local wait = waits.condition(result)
    if wait then
      local old = handlers.get(tx, state, result[H_ID])
      if old and STEP[old[H_STATUS]] then
        met = met or old[H_STATUS] == 'KEPT'
      else
        local memo = result[H_TOKEN] or waits.search(tx, state, wait, result[H_SETTLED] or state[ID])
        if memo then
          result[H_STATUS], result[H_VALUE], met = 'KEPT', memo, true
        end
      end
    end
  end
  return met
end

-- Drop the waits of an event that ends.
function waits.leave(tx, state)
  for _, handler in ipairs(handlers.of(tx, state)) do
    if handler[H_STATUS] == 'WAITING' then
      handlers.drop(tx, state, handler)
    end
  end
end

-- Return the shapes of the waits for one bus and type: it jumps from one shape to the next.
function waits.shapes_of(tx, prefix)
  local shapes, from = {}, '[' .. prefix
  while true do
    local member = redis.call('ZRANGEBYLEX', tx[WAITS], from, '(' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
    if not member then
      return shapes
    end
    local shape = string.match(member, '^[^\1]*')
    shapes[#shapes + 1] = { shape, waits.names_of(shape) }
    from = '(' .. shape .. '\2'
  end
end

function waits.keep(tx, id, handler_id, event, memo)
  local state = states.load(tx, id)
  local handler = state and handlers.get(tx, state, handler_id)
  local wait = handler and waits.condition(handler)
  if not wait or id >= event[ID] or not waits.in_time(wait, event) then
    return false
  end
  handler[H_STATUS], handler[H_VALUE] = 'KEPT', memo
  handlers.put(tx, state, handler)
  if state[STATUS] == 'PENDING' then
    local head = states.head(tx, id)
    queue.leave(tx, state, head[PRIORITY], head[TAGS])
    state[DUE] = math.min(state[DUE], state[UPDATED])
    queue.enter(tx, state, head[PRIORITY], head[TAGS])
    states.change(tx, state)
  end
  return true
end

-- Let the events that this call has stored meet the waits for them. Returns whether there was any change. Without any
-- wait in the store, this is one look at a key.
function waits.meet(tx)
  local first, shapes, changed = tx.first_new, {}, false
  tx.first_new = nil
  if not first or redis.call('EXISTS', tx[WAITS]) == 0 then
    return false
  end
  for id = first, tx.id do
    local event, data = states.load(tx, id), redis.call('HGET', tx[DATA], id)
    local prefix = event and event[BUS] .. '\n' .. states.head_of(data)[TYPE] .. '\n'
    if prefix and not shapes[prefix] then
      shapes[prefix] = waits.shapes_of(tx, prefix)
    end
    local said = prefix and #shapes[prefix] > 0 and cmsgpack.unpack(string.sub(data, AFTER_MARK))
    local payload = said and waits.decoded(said[waits.PAYLOAD])
    for _, shape in ipairs(said and shapes[prefix] or NONE) do
      local key = waits.key_of(payload, shape[2])
      local start = key and shape[1] .. '\1' .. key .. '\1'
      local found = key and redis.call('ZRANGEBYLEX', tx[WAITS], '[' .. start, '(' .. string.sub(start, 1, -2) .. '\2')
      for _, member in ipairs(found or NONE) do
        local waiter, handler_id = struct.unpack('>I8', member, #start + 1), string.sub(member, #start + 9)
        changed = waits.keep(tx, waiter, handler_id, event, waits.memo_of(event, said)) or changed
      end
    end
  end
  return changed
end
