-- Extend the lease of a lock. Only token and fence decide.
-- Takes: key, token, fence, lease. Returns: the lock, or nothing
register('renew_lock', WRITES, function(tx, asked)
  local key, token, fence, lease = unpack(asked)
  local lock = locks.get(tx, key)
  if not lock or lock[L_TOKEN] ~= token or lock[L_FENCE] ~= fence then
    return ''
  end
  locks.renew(tx, lock, lease)
  flush(tx)
  return cmsgpack.pack(lock)
end)
