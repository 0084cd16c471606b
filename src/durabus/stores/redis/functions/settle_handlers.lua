-- End handler claims: write what a handler did, or offer it again. A repeat returns what the first call returned.
-- Takes: of each the claim (id, handler id, token, fence), status or nothing, error, value, time, delay.
-- Returns: the handler, or a code, of each
register('settle_handlers', WRITES, function(tx, asked)
  local answer = {}
  for n, one in ipairs(asked) do
    local handler = handlers.settle(tx, unpack(one, 1, 7))
    answer[n] = type(handler) == 'table' and cmsgpack.pack(handler) or handler
  end
  flush(tx)
  return answer
end)
