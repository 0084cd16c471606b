-- Extend leases, and the locks that the claims took. The log gets no entry.
-- Takes: lease, then id, token, fence of each. Returns: the new expiry, and a code for each (0 is success)
register('renew_event_claims', WRITES, function(tx, asked)
  local lease, codes = asked[1], {}
  local expires = tx.now + lease
  for n, ref in ipairs(asked[2]) do
    local state = states.load(tx, ref[1])
    if state and lifecycle.holds(state, ref[2], ref[3]) then
      drop(tx, tx[LEASES], by_time(state[BUS], state[EXPIRES], state[ID]))
      add(tx, tx[LEASES], by_time(state[BUS], expires, state[ID]))
      state[EXPIRES] = expires
      states.change(tx, state)
      local lock = state[LOCK_KEY] and locks.get(tx, state[LOCK_KEY])
      local own = lock and lock[L_TOKEN] == ref[2] and lock[L_FENCE] == state[LOCK_FENCE]
      if own and lock[L_EXPIRES] < expires then -- another event of the token may have been renewed for longer
        locks.renew(tx, lock, lease)
      end
      codes[n] = 0
    else
      codes[n] = state and NOT_YOURS or NO_EVENT
    end
  end
  flush(tx)
  return cmsgpack.pack({ expires, codes })
end)
