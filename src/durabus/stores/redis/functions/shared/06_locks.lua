-- Locks. One counter gives the fences of all keys, so a lock that was deleted does not repeat a fence.

local locks = {}

local KEPT_FOR = 86400 -- seconds that a free lock is kept, so that the repeat of a release is recognised
local SWEPT_AT_ONCE = 10

function locks.get(tx, key)
  local lock = tx.locks[key]
  if lock == nil then
    local blob = redis.call('HGET', tx[LOCKS], key)
    lock = blob and cmsgpack.unpack(blob) or false
    tx.locks[key] = lock
  end
  return lock
end

function locks.put(tx, key, lock)
  tx.locks[key] = lock
  tx.changed_locks[key] = true
end

-- Return whether a lock is free, expired, or held by this token.
function locks.may_claim(tx, key, token)
  local lock = locks.get(tx, key)
  return not lock or not lock[L_TOKEN] or lock[L_TOKEN] == token or lock[L_EXPIRES] <= tx.now
end

local function sweep(tx)
  local old = redis.call('ZRANGEBYSCORE', tx[LOCK_ENDS], '-inf', tx.now - KEPT_FOR, 'LIMIT', 0, SWEPT_AT_ONCE)
  for _, key in ipairs(old) do
    if tx.locks[key] == nil then
      locks.put(tx, key, false)
    end
  end
end

-- Take a lock that may be claimed. If it expired, its former holder also loses the events or the handler it held with
-- it.
function locks.take(tx, key, worker, token, lease, with_events, named, max_attempts)
  local held = locks.get(tx, key)
  if held and held[L_TOKEN] == token then
    if with_events then
      held[L_EVENTS] = true
      locks.put(tx, key, held)
    end
    return held
  end
  if held and held[L_TOKEN] then
    locks.void(tx, held, max_attempts)
  end
  tx.lock_fence = tx.lock_fence + 1
  tx.moved = true
  local lock = { key, tx.lock_fence, worker, token, tx.now + lease, with_events, named }
  locks.put(tx, key, lock)
  sweep(tx)
  return lock
end

function locks.renew(tx, lock, lease)
  lock[L_EXPIRES] = tx.now + lease
  locks.put(tx, lock[L_KEY], lock)
end

-- Free a lock. A lock that was claimed by name is kept for a while, to recognise the repeat of its release.
function locks.free(tx, lock)
  if lock[L_NAMED] then
    lock[L_TOKEN], lock[L_EXPIRES], lock[L_EVENTS] = false, tx.now, false
    locks.put(tx, lock[L_KEY], lock)
  else
    locks.put(tx, lock[L_KEY], false)
  end
  if lock[L_KEY] == 'event:global' then
    tx.woken[''] = true
  end
end
