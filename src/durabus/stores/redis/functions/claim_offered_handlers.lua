-- Claim handlers of PROCESSING events of a bus that are offered now. A repeat returns what its token holds.
-- Takes: bus, handler ids, worker, token, limit, lease, mode. Returns: state, data, results and handler of each claim

local MOST_LOOKED_AT = 1000 -- maximum number of offers of one handler that a call looks at

local function answer(tx, claimed)
  flush(tx)
  local reply = {}
  for _, one in ipairs(claimed) do
    local id, last = one[1][ID], #reply
    reply[last + 1] = redis.call('HGET', tx[STATE], id)
    reply[last + 2] = redis.call('HGET', tx[DATA], id)
    reply[last + 3] = handlers.records(tx, one[1])
    reply[last + 4] = cmsgpack.pack(one[2])
  end
  return reply
end

register('claim_offered_handlers', WRITES, function(tx, asked)
  local bus, wanted, worker, token, limit, lease, mode = unpack(asked, 1, 7)
  local found = handlers.held_by(tx, token)
  if #found > 0 then
    return answer(tx, found)
  end
  local ids, offers = {}, {}
  for _, handler_id in ipairs(wanted) do
    for _, member in ipairs(past_of(tx[OFFERED], bus .. '\0' .. handler_id, tx.now, MOST_LOOKED_AT)) do
      local id = id_of(member)
      if not offers[id] then
        ids[#ids + 1], offers[id] = id, {}
      end
      offers[id][handler_id] = true
    end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local state = #found < limit and states.load(tx, id)
    local taken = not (state and state[STATUS] == 'PROCESSING')
    for _, one in ipairs(taken and NONE or handlers.of(tx, state)) do
      if offers[id][one[H_ID]] and #found < limit and not (mode == 'serial' and taken) then
        local handler = handlers.claim(tx, state, { one[H_ID] }, worker, token, lease, mode)
        if handler then
          taken = true
          found[#found + 1] = { state, handler }
        end
      end
    end
  end
  return answer(tx, found)
end)
