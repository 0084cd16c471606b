-- Return the claim that a settlement of each event must carry now.
-- Takes: ids. Returns: token and fence of each, or false
register('current_claims', READS, function(tx, asked)
  local claims = {}
  states.load_all(tx, asked)
  for n, id in ipairs(asked) do
    local state = tx.states[id]
    local lost = state and states.abandoned(state)
    local token = lost and lost[A_TOKEN] or (state and state[STATUS] == 'PROCESSING' and state[TOKEN])
    claims[n] = token and { token, state[FENCE] } or false
  end
  return cmsgpack.pack(claims)
end)
