-- Frees a lock. A repeat changes nothing.
-- asks: key, token, fence; answers a code (0 is good)
register('release_lock', FREES, function(tx, asked)
  local key, token, fence = unpack(asked)
  local lock = locks.get(tx, key)
  if not lock or lock[L_FENCE] ~= fence or (lock[L_TOKEN] and lock[L_TOKEN] ~= token) then
    return NOT_YOURS
  end
  if lock[L_TOKEN] then
    lock[L_NAMED] = true
    locks.free(tx, lock)
    flush(tx)
  end
  return 0
end)
