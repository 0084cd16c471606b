-- Save how far a reader has read, if the lock is held by this token. Without a position, forget the reader.
-- Takes: name, position, lock key, token, fence. Returns: a code (0 is success)
register('save_position', WRITES, function(tx, asked)
  local name, position, key, token, fence = unpack(asked)
  local lock = locks.get(tx, key)
  if not lock or lock[L_TOKEN] ~= token or lock[L_FENCE] ~= fence then
    return NOT_YOURS
  end
  if position then
    put(tx, tx[POSITIONS], name, position)
  else
    unset(tx, tx[POSITIONS], name)
  end
  flush(tx)
  return 0
end)
