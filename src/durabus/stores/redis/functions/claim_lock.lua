-- Take a lock if it is free or its lease is over, with a fence above all earlier ones.
-- Takes: key, worker, token, lease. Returns: the lock, or nothing
register('claim_lock', WRITES, function(tx, asked)
  local key, worker, token, lease = unpack(asked)
  if not locks.may_claim(tx, key, token) then
    return ''
  end
  local lock = locks.take(tx, key, worker, token, lease, false, true)
  processes.saw(tx, token)
  flush(tx)
  return cmsgpack.pack(lock)
end)
