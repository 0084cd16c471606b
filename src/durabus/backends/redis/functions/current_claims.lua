-- What a write on each of these events must carry now.
-- asks: ids; answers token and fence of each, or false
register('current_claims', READS, function(tx, asked)
  local claims = {}
  states.load_all(tx, asked)
  for n, id in ipairs(asked) do
    local state = tx.states[id]
    claims[n] = state and state[STATUS] == 'PROCESSING' and { state[TOKEN], state[FENCE] } or false
  end
  return cmsgpack.pack(claims)
end)
