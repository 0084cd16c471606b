-- Return registered buses in order of name. Relies on bus_order.
-- Takes: after, limit. Returns: name and record of each
register('list_buses', READS, function(tx, asked)
  local after, answer = asked[1], {}
  local from = after == '' and '-' or '(' .. after
  local names = redis.call('ZRANGEBYLEX', tx[BUS_ORDER], from, '+', 'LIMIT', 0, asked[2])
  for n, blob in ipairs(get_many(tx[BUSES], names)) do
    answer[#answer + 1] = names[n]
    answer[#answer + 1] = blob
  end
  return answer
end)
