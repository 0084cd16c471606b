-- Extend the leases of handler claims, and their serial locks.
-- Takes: lease, then id, handler id, token, fence of each. Returns: the new expiry, and a code for each (0 is success)
register('renew_handler_claims', WRITES, function(tx, asked)
  local lease, codes = asked[1], {}
  for n, claim in ipairs(asked[2]) do
    local state = states.load(tx, claim[1])
    local handler = state and handlers.held(tx, state, claim[2], claim[3], claim[4])
    codes[n] = handler and 0 or NOT_YOURS
    if handler then
      handler[H_EXPIRES] = tx.now + lease
      handlers.put(tx, state, handler)
      local lock = locks.get(tx, handlers.lock_key(tx, state))
      if lock and lock[L_TOKEN] == claim[3] then
        locks.renew(tx, lock, lease)
      end
    end
  end
  flush(tx)
  return cmsgpack.pack({ tx.now + lease, codes })
end)
