-- The stored results of events, each with the claim on its handler. RESULTS has two fields for each result: `id 0 place`
-- is its record, and `id 1 handler id` is its place. Places count from 1 in the order in which the results first
-- appeared, and state[HANDLERS] is the last of them. A call reads and writes only the results that it needs: a step
-- costs no more after a thousand others.

do -- a block: Lua allows 200 local names at a time
  local function at_place(id, place)
    return string.format('%d\0%d', id, place)
  end

  local function of_handler(id, handler_id)
    return string.format('%d\1', id) .. handler_id
  end

  -- Return what this call knows of the results of an event.
  local function known_of(tx, state)
    local known = tx.results[state[ID]]
    if not known then
      local last = state[HANDLERS] or 0
      known = { state = state, last = last, is_whole = last == 0, by_id = {}, by_place = {}, gone = {} }
      tx.results[state[ID]] = known
    end
    return known
  end

  local function remember(known, place, blob)
    local handler = cmsgpack.unpack(blob)
    local one = { handler = handler, place = place }
    one.offered, one.waits = handlers.offered_members(known.state, handler), waits.members(known.state[ID], handler)
    known.by_id[handler[H_ID]], known.by_place[place] = one, one
    return one
  end

  -- Return the result of one handler, or nil.
  function handlers.get(tx, state, handler_id)
    local known, id = known_of(tx, state), state[ID]
    local one = known.by_id[handler_id]
    if not one and not known.is_whole then
      local place = redis.call('HGET', tx[RESULTS], of_handler(id, handler_id))
      local blob = place and redis.call('HGET', tx[RESULTS], at_place(id, place))
      one = blob and remember(known, tonumber(place), blob)
    end
    return one and one.handler or nil
  end

  -- Return the fields of the records of an event, in the order in which its results first appeared.
  local function places_of(state)
    local fields = {}
    for place = 1, state[HANDLERS] or 0 do
      fields[place] = at_place(state[ID], place)
    end
    return fields
  end

  -- Return all results of an event, in the order in which they first appeared.
  function handlers.of(tx, state)
    local known, list = known_of(tx, state), {}
    if not known.is_whole then
      for place, blob in ipairs(get_many(tx[RESULTS], places_of(state))) do
        if blob and not known.by_place[place] then
          remember(known, place, blob)
        end
      end
      known.is_whole = true
    end
    for place = 1, known.last do
      local one = known.by_place[place]
      if one then
        list[#list + 1] = one.handler
      end
    end
    return list
  end

  -- Write a result at the end of the call. It is new, or `get` or `of` has returned it.
  function handlers.put(tx, state, handler)
    local known = known_of(tx, state)
    local one = known.by_id[handler[H_ID]]
    if not one then
      known.last = known.last + 1
      one = { handler = handler, place = known.last, is_new = true, offered = NONE, waits = NONE }
      known.by_id[handler[H_ID]], known.by_place[known.last] = one, one
      state[HANDLERS] = known.last
      states.change(tx, state)
    end
    one.is_changed = true
    tx.changed_results[state[ID]] = known
  end

  -- Delete a result that `of` has returned.
  function handlers.drop(tx, state, handler)
    local known = known_of(tx, state)
    local one = known.by_id[handler[H_ID]]
    known.by_id[handler[H_ID]], known.by_place[one.place] = nil, nil
    known.gone[#known.gone + 1] = one
    if not next(known.by_id) then
      known.last, state[HANDLERS] = 0, false
      states.change(tx, state)
    end
    tx.changed_results[state[ID]] = known
  end

  -- Bring the indexes up to date with the results of an event that ends: its handlers are offered no more.
  function handlers.end_offers(tx, state)
    handlers.of(tx, state)
    tx.changed_results[state[ID]] = known_of(tx, state)
  end

  local function bring_up_to_date(tx, key, before, after)
    for member in pairs(before) do
      if not after[member] then
        drop(tx, key, member)
      end
    end
    for member in pairs(after) do
      if not before[member] then
        add(tx, key, member)
      end
    end
    return after
  end

  local function write(tx, known, one)
    local id, handler = known.state[ID], one.handler
    local is_live = LIVE[known.state[STATUS]]
    local offered = is_live and handlers.offered_members(known.state, handler) or NONE
    one.offered = bring_up_to_date(tx, tx[OFFERED], one.offered, offered)
    if one.is_changed then
      one.waits = bring_up_to_date(tx, tx[WAITS], one.waits, waits.members(id, handler))
      put(tx, tx[RESULTS], at_place(id, one.place), cmsgpack.pack(handler))
      if one.is_new then
        put(tx, tx[RESULTS], of_handler(id, handler[H_ID]), one.place)
      end
      one.is_new, one.is_changed = false, false
    end
  end

  -- Write the results that this call has changed, and bring the indexes up to date with them.
  function handlers.write(tx)
    for id, known in pairs(tx.changed_results) do
      for _, one in ipairs(known.gone) do
        unset(tx, tx[RESULTS], at_place(id, one.place))
        unset(tx, tx[RESULTS], of_handler(id, one.handler[H_ID]))
        bring_up_to_date(tx, tx[OFFERED], one.offered, NONE)
        bring_up_to_date(tx, tx[WAITS], one.waits, NONE)
      end
      known.gone = {}
      for _, one in pairs(known.by_place) do
        write(tx, known, one)
      end
    end
    tx.changed_results = {}
  end

  -- Return the records of the results of an event as they are after `flush`, in the order in which they first appeared.
  function handlers.records(tx, state)
    local records = {}
    for _, blob in ipairs(get_many(tx[RESULTS], places_of(state))) do
      if blob then
        records[#records + 1] = blob
      end
    end
    return records
  end
end
