-- Remembers how far a reader has come, if the lock is held by this token.
-- asks: name, position, lock key, token, fence; answers a code (0 is good)
register('save_position', WRITES, function(tx, asked)
  local name, position, key, token, fence = unpack(asked)
  local lock = locks.get(tx, key)
  if not lock or lock[L_TOKEN] ~= token or lock[L_FENCE] ~= fence then
    return NOT_YOURS
  end
  put(tx, tx[POSITIONS], name, position)
  flush(tx)
  return 0
end)
