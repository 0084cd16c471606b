-- Buses and the handlers that nodes registered for them. One counter gives the revisions of all buses.

local registering = {}

function registering.bus(tx, bus)
  local blob = redis.call('HGET', tx[BUSES], bus)
  return blob and cmsgpack.unpack(blob)
end

function registering.handlers(tx, bus)
  local blob = redis.call('HGET', tx[BUS_HANDLERS], bus)
  return blob and cmsgpack.unpack(blob) or {}
end

function registering.lives(tx, one)
  return not one[R_UNTIL] or one[R_UNTIL] > tx.now
end

local function are_alike(before, after)
  local patterns = {}
  for _, one in ipairs(before) do
    patterns[one[R_HANDLER] .. '\0' .. one[R_NODE]] = one[R_PATTERN]
  end
  for _, one in ipairs(after) do
    if patterns[one[R_HANDLER] .. '\0' .. one[R_NODE]] ~= one[R_PATTERN] then
      return false
    end
  end
  return #before == #after
end

-- Write the handlers of a bus. If they differ from those before, the bus gets a new revision.
function registering.put(tx, bus, info, before, after)
  if info[B_REVISION] == 0 or not are_alike(before, after) then
    tx.revision = tx.revision + 1
    tx.moved = true
    info[B_REVISION] = tx.revision
  end
  put(tx, tx[BUSES], bus, cmsgpack.pack(info))
  add(tx, tx[BUS_ORDER], bus)
  if #after > 0 then
    put(tx, tx[BUS_HANDLERS], bus, cmsgpack.pack(after))
  else
    unset(tx, tx[BUS_HANDLERS], bus)
  end
end
