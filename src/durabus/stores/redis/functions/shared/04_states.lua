-- The states and the data of events. A call reads each state once.

local states = {}

-- A damaged state counts as missing, so that it does not stop the queue.
local function read_state(blob)
  if not blob then
    return false
  end
  local ok, state = pcall(cmsgpack.unpack, blob)
  local whole = ok and type(state) == 'table' and (#state == STATE_PLACES or #state == ORDERING_KEY)
  return whole and state or false
end

function states.load(tx, id)
  local state = tx.states[id]
  if state == nil then
    state = read_state(redis.call('HGET', tx[STATE], id))
    tx.states[id] = state
  end
  return state
end

function states.load_all(tx, ids)
  local missing = {}
  for _, id in ipairs(ids) do
    if tx.states[id] == nil then
      missing[#missing + 1] = id
    end
  end
  local blobs = get_many(tx[STATE], missing)
  for n, id in ipairs(missing) do
    tx.states[id] = read_state(blobs[n])
  end
end

-- Find a state by id (a number) or by event_id (a string).
function states.find(tx, ref)
  local id = type(ref) == 'number' and ref or tonumber(redis.call('HGET', tx[IDS], ref) or nil)
  return id and states.load(tx, id) or false
end

-- Return the claim that the event lost because its lease was over, if the event has not been claimed again.
function states.abandoned(state)
  return type(state[TOKEN]) == 'table' and state[TOKEN]
end

function states.change(tx, state)
  tx.changed[state[ID]] = state
end

-- The fields of the head of an event's data: what the publisher gave, without metadata and payload. Damaged data give
-- an empty head.
local EVENT_ID, SAID_BUS, TYPE, TAGS, PRIORITY, MAX_ATTEMPTS, PARENT, KEY = 1, 2, 3, 4, 5, 6, 7, 8

-- The data begin with the creation time (8 bytes) and the mark of an array (1 byte); then come the publisher's fields.
local HEAD_PLACES, DATA_MARK, AFTER_MARK = 9, 1, 9

local function as_head(ok, _, event_id, bus, kind, _, tags, priority, max_attempts, parent, key)
  if not ok or type(priority) ~= 'number' then
    return { '', '', '', nil, 0 }
  end
  return { event_id, bus, kind, tags, priority, max_attempts, parent, key }
end

function states.head_of_new(data)
  return as_head(true, cmsgpack.unpack_limit(data, HEAD_PLACES, DATA_MARK))
end

function states.head_of(data)
  return as_head(pcall(cmsgpack.unpack_limit, data or '', HEAD_PLACES, AFTER_MARK))
end

function states.head(tx, id)
  return states.head_of(redis.call('HGET', tx[DATA], id))
end

-- Append the state and the data of each event to a reply, as they are after `flush`.
function states.answer(tx, found, answer)
  local ids = {}
  for n, state in ipairs(found) do
    ids[n] = state[ID]
  end
  local blobs, data = get_many(tx[STATE], ids), get_many(tx[DATA], ids)
  for n = 1, #ids do
    answer[#answer + 1] = blobs[n]
    answer[#answer + 1] = data[n]
  end
  return answer
end
