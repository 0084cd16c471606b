-- Return how many entries there are after a position. The counts of later blocks are added up. Relies on log_blocks.
-- Takes: after. Returns: the number, or -1 for a position that this log does not have
register('log_lag', READS, function(tx, asked)
  local after, lag = asked[1], 0
  if after > tx.position then
    return -1
  end
  local own = math.floor((after + 1) / BLOCK)
  local blocks = redis.call('HGETALL', tx[LOG_BLOCKS])
  for n = 1, #blocks, 2 do
    if tonumber(blocks[n]) > own then
      lag = lag + tonumber(blocks[n + 1])
    end
  end
  return lag + #log.read(tx, after, BLOCK, own * BLOCK + BLOCK - 1)
end)
