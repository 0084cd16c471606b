-- Take back events that belong to a process that has ended, and end the leases of its handler claims and locks. Relies
-- on event_results:offered, locks:order, processes.
-- Takes: incarnation, max attempts, ids of its events, whether it has no others. Returns: how many were taken back
local function end_locks(tx, incarnation)
  for _, key in ipairs(redis.call('ZRANGE', tx[LOCK_ORDER], 0, -1)) do
    local lock = locks.get(tx, key)
    if lock and processes.owns(incarnation, lock[L_TOKEN]) and lock[L_EXPIRES] > tx.now then
      lock[L_EXPIRES] = tx.now
      locks.put(tx, key, lock)
    end
  end
end

local function end_handler_claims(tx, incarnation)
  local from = handlers.of_token(incarnation)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', tx[OFFERED], '[' .. from, '(' .. from .. '\255')) do
    local state = states.load(tx, id_of(member))
    if state then
      handlers.end_claims(tx, state, incarnation)
    end
  end
end

register('end_process', WRITES, function(tx, asked)
  local incarnation, taken = asked[1], 0
  if not processes.lives(tx, incarnation) then
    taken = lifecycle.expire_all(tx, asked[3], asked[2], incarnation)
    end_handler_claims(tx, incarnation)
    end_locks(tx, incarnation)
    if asked[4] then
      drop(tx, tx[PROCESSES], incarnation)
    end
    flush(tx)
  end
  return taken
end)
