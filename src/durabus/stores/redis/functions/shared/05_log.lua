-- The log: one stream entry for each transition. Entries do not repeat the data of their event. A reader joins them
-- with the data of the event, or with the data that a removed event left for its entries.

local log = {}

-- Append one entry: action, status, at, attempt, generation, fence, worker. `more` holds the optional fields: error,
-- next retry, time, status code, errors, results, reason.
function log.append(tx, state, action, worker, more)
  local position = tx.position + 1
  tx.position, tx.moved = position, true
  local block = math.floor(position / BLOCK)
  tx.blocks[block] = (tx.blocks[block] or 0) + 1
  state[TRAIL] = state[TRAIL] and state[TRAIL] .. ',' .. position or '' .. position
  local entry = {
    action,
    state[STATUS],
    tx.now,
    state[ATTEMPTS],
    state[GENERATION],
    state[FENCE],
    worker,
    unpack(more or NONE),
  }
  local entries = tx.entries
  local last = #entries
  entries[last + 1], entries[last + 2], entries[last + 3] = position, state[ID], cmsgpack.pack(entry)
end

function log.positions(trail)
  local positions = {}
  for position in string.gmatch(trail, '%d+') do
    positions[#positions + 1] = position
  end
  return positions
end

-- Remove entries from the stream and from the counts of their blocks.
function log.remove(tx, positions)
  for _, position in ipairs(positions) do
    tx.cut[#tx.cut + 1] = position .. '-0'
    local block = math.floor(tonumber(position) / BLOCK)
    tx.blocks[block] = (tx.blocks[block] or 0) - 1
  end
end

-- Return position, id and entry of each entry after `after`. The stream's id of an entry is `position-0`.
function log.read(tx, after, limit, last)
  local found = {}
  local raw = redis.call('XRANGE', tx[LOG], after + 1 .. '-0', last .. '-0', 'COUNT', limit)
  for n, one in ipairs(raw) do
    found[n] = { string.match(one[1], '^%d+'), one[2][2], one[2][4] }
  end
  return found
end

-- Append position, id, entry and data of each entry to a reply. Only the first entry of an event carries its data. The
-- reply ends early when it grows large.
function log.answer(tx, found, answer)
  local seen, size = {}, 0
  for first = 1, #found, 100 do
    local ids = {}
    for n = first, math.min(first + 99, #found) do
      ids[#ids + 1] = found[n][2]
    end
    local data = get_many(tx[DATA], ids)
    for n, id in ipairs(ids) do
      local one, blob = found[first + n - 1], ''
      if not seen[id] then
        seen[id] = true
        blob = data[n] or redis.call('HGET', tx[DELETED], id) or ''
      end
      size = size + #blob
      local last = #answer
      answer[last + 1], answer[last + 2], answer[last + 3], answer[last + 4] = one[1], id, one[3], blob
      if size > LARGE then
        return answer
      end
    end
  end
  return answer
end
