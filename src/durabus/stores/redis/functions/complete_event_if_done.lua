-- Complete an event if these handlers are settled, or one of its results is UNRECOVERABLE.
-- Takes: id, token, fence, handler ids. Returns: status and next retry, or a code
local function is_done(tx, state, wanted)
  if #handlers.unrecoverable(handlers.of(tx, state)) > 0 then
    return true
  end
  for _, handler_id in ipairs(wanted) do
    local handler = handlers.get(tx, state, handler_id)
    if not handler or not SETTLED_RESULT[handler[H_STATUS]] then
      return false
    end
  end
  return true
end

register('complete_event_if_done', WRITES, function(tx, asked)
  local id, token, fence, wanted = unpack(asked, 1, 4)
  local state = states.load(tx, id)
  if not state then
    return NO_EVENT
  end
  if lifecycle.settles(state, token, fence) and not is_done(tx, state, wanted) then
    return NOT_DONE
  end
  local outcome = lifecycle.complete(tx, state, token, fence, {}, {})
  if type(outcome) ~= 'table' then
    return outcome
  end
  flush(tx)
  return cmsgpack.pack({ lifecycle.settled_to(state), outcome[TO_RETRY] or false })
end)
