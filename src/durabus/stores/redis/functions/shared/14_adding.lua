-- New events: those of `add_events`, and the children of settlements.

local adding = {}

-- Store events with their PUBLISHED entries. For an event whose event_id, or key on the same bus, is known, the stored
-- one stands in. `blobs` are the records of data; delays and ordering keys are false if there are none.
-- Returns the ids, and the states of the events that were known.
function adding.add(tx, blobs, delays, keys)
  local event_ids, heads = {}, {}
  for n, blob in ipairs(blobs) do
    local head = states.head_of_new(blob)
    heads[n], event_ids[n] = head, head[EVENT_ID]
  end
  local stored, by_key, ids, known = get_many(tx[IDS], event_ids), {}, {}, {}
  local by_name = {}
  for n, event_id in ipairs(event_ids) do
    local head = heads[n]
    local bus, key = head[SAID_BUS], head[KEY]
    key = key and bus .. '\0' .. key
    if key and by_key[key] == nil then
      by_key[key] = tonumber(redis.call('HGET', tx[IDEMPOTENCY], key) or nil) or false
    end
    local id = by_name[event_id] or tonumber(stored[n] or nil) or (key and by_key[key])
    if not id then
      tx.id = tx.id + 1
      id = tx.id
      tx.first_new = tx.first_new or id
      local due = tx.now + (delays and delays[n] or 0)
      local tags = head[TAGS]
      local state = {
        id, 'PENDING', 0, 0, 0, false, false, tx.now, tx.now, due, false, false, false,
        bus, false, false, false, false, false, false, tags and true or false, head[PARENT] or false,
      }
      state[ORDERING_KEY] = keys and keys[n] or nil
      tx.states[id] = state
      states.change(tx, state)
      put(tx, tx[DATA], id, struct.pack('>d', tx.now) .. blobs[n])
      put(tx, tx[IDS], event_id, id)
      add(tx, tx[ORDER], id, id)
      add(tx, tx[BY_BUS], by_bus(bus, id))
      if head[PARENT] then
        add(tx, tx[BY_PARENT], by_bus(head[PARENT], id))
      end
      queue.enter(tx, state, head[PRIORITY], tags)
      family.join(tx, state)
      log.append(tx, state, 'PUBLISHED', false)
      if key then
        put(tx, tx[IDEMPOTENCY], key, id)
        by_key[key] = id
      end
      by_name[event_id] = id
    elseif tx.states[id] == nil and states.load(tx, id) then
      known[#known + 1] = tx.states[id]
    end
    ids[n] = id
  end
  return ids, known
end

-- Store the children of settlements: delay, ordering key, and the number of the argument with the data of each.
function adding.add_children(tx, children, args)
  if #children == 0 then
    return
  end
  local blobs, delays, keys = {}, {}, {}
  for n, child in ipairs(children) do
    delays[n], keys[n], blobs[n] = child[1], child[2], args[child[3]]
  end
  adding.add(tx, blobs, delays, keys)
end

-- Append the children of one settlement to a list.
function adding.collect(children, list)
  for _, child in ipairs(children or NONE) do
    list[#list + 1] = child
  end
end
