-- End claims, judge each one on its own, then claim the next events in the same step.
-- Takes: settlements, the arguments of a claim, or nothing, and whether to return the log entries. A settlement is:
-- kind, id, token, fence, results, children, and what the kind needs. A settlement `done` stands for many plainly
-- completed events: token, fence, id and time of each, and their handler.
-- Returns: for each event a code (0 is COMPLETED), or status and next retry; then the log entries, after the number of
-- their records; then the reply of the claim
local COMPLETED = 0

local function judge(tx, state, one)
  local kind, token, fence, results = one[1], one[3], one[4], one[5]
  if kind == 'complete' then
    return lifecycle.complete(tx, state, token, fence, results, one[7], one[8], one[9], one[10], one[11])
  elseif kind == 'fail' then
    return lifecycle.fail(tx, state, token, fence, results, one[7], one[8], one[9], one[10])
  elseif kind == 'cancel' then
    return lifecycle.cancel(tx, state, token, fence, results, one[7])
  end
  return lifecycle.release(tx, state, token, fence, results, one[7], one[8], one[9])
end

-- Settle one claim. Its children join the list if it takes effect now: a repeat returns the settlement that was there.
local function settle(tx, one, children)
  local state = states.load(tx, one[2])
  if not state then
    return NO_EVENT
  end
  local before = state[SETTLED]
  local settled = judge(tx, state, one)
  if type(settled) == 'table' and settled ~= before then
    adding.collect(one[6], children)
  end
  return settled
end

-- Return the newest settlement as an outcome, or the code of a refusal.
local function outcome_of(state, settled)
  if type(settled) ~= 'table' then
    return settled
  end
  local status = lifecycle.settled_to(state)
  return status == 'COMPLETED' and COMPLETED or { status, settled[TO_RETRY] or false }
end

local function complete_all(tx, token, fence, run, handler_id, outcomes)
  for n = 1, #run, 2 do
    local state = tx.states[run[n]]
    local settled = state and lifecycle.complete(tx, state, token, fence, NONE, NONE, run[n + 1], nil, nil, handler_id)
    outcomes[#outcomes + 1] = state and outcome_of(state, settled) or NO_EVENT
  end
end

local function ids_to_settle(settlements)
  local ids = {}
  for _, one in ipairs(settlements) do
    if one[1] == 'done' then
      for n = 1, #one[4], 2 do
        ids[#ids + 1] = one[4][n]
      end
    else
      ids[#ids + 1] = one[2]
    end
  end
  return ids
end

-- Append the log entries that the settlements wrote to a reply, as `read_log` returns them.
local function append_entries(tx, entries, count, answer)
  local last = #answer + 1
  answer[last] = count / 3 * 4
  for n = 1, count, 3 do
    local id = string.format('%d', entries[n + 1])
    answer[last + 1], answer[last + 2] = string.format('%d', entries[n]), id
    answer[last + 3], answer[last + 4] = entries[n + 2], redis.call('HGET', tx[DATA], id) or ''
    last = last + 4
  end
end

register('settle_events', WRITES, function(tx, asked, args)
  local outcomes, children = {}, {}
  states.load_all(tx, ids_to_settle(asked[1]))
  for _, one in ipairs(asked[1]) do
    if one[1] == 'done' then
      complete_all(tx, one[2], one[3], one[4], one[5], outcomes)
    else
      outcomes[#outcomes + 1] = outcome_of(tx.states[one[2]], settle(tx, one, children))
    end
  end
  local entries, count = tx.entries, #tx.entries -- flush begins a new list
  adding.add_children(tx, children, args)
  flush(tx)
  local answer = { cmsgpack.pack(outcomes) }
  if asked[3] then
    append_entries(tx, entries, count, answer)
  end
  return asked[2] and claiming.answer(tx, asked[2], answer) or answer
end)
