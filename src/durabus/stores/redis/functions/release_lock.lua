-- Free a lock. A repeat changes nothing.
-- Takes: key, token, fence. Returns: a code (0 is success)
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
