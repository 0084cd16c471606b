-- Store events, all or none, with their PUBLISHED entries. For an event whose event_id, or key on the same bus, is
-- known, the stored event is returned instead. Relies on ids and idempotency_keys.
-- Takes: delays and ordering keys, or false if there are none; then one record of data for each event
register('add_events', WRITES, function(tx, asked, args)
  local delays, keys, event_ids, heads = asked[1], asked[2], {}, {}
  for n = 3, #args do
    local head = states.head_of_new(args[n])
    heads[n - 2], event_ids[n - 2] = head, head[EVENT_ID]
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
      local due = tx.now + (delays and delays[n] or 0)
      local tags = head[TAGS]
      local state = {
        id, 'PENDING', 0, 0, 0, false, false, tx.now, tx.now, due, false, false, false,
        bus, false, false, false, false, false, false, tags and true or false,
      }
      state[ORDERING_KEY] = keys and keys[n] or nil
      tx.states[id] = state
      states.change(tx, state)
      put(tx, tx[DATA], id, struct.pack('>d', tx.now) .. args[n + 2])
      put(tx, tx[IDS], event_id, id)
      add(tx, tx[ORDER], id, id)
      add(tx, tx[BY_BUS], by_bus(bus, id))
      queue.enter(tx, state, head[PRIORITY], tags)
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
  flush(tx)
  return states.answer(tx, known, { cmsgpack.pack({ tx.now, ids }) })
end)
