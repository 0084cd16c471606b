-- Return some processes that were last seen too long ago, and the seconds until the next one may be.
local AT_ONCE = 100

register('ended_processes', READS, function(tx)
  local last = string.format('%.17g', tx.now - PRESENT_FOR)
  local ended = redis.call('ZRANGEBYSCORE', tx[PROCESSES], '-inf', last, 'LIMIT', 0, AT_ONCE)
  local next_one = redis.call('ZRANGEBYSCORE', tx[PROCESSES], '(' .. last, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local left = next_one[2] and tonumber(next_one[2]) + PRESENT_FOR - tx.now or PRESENT_FOR
  return cmsgpack.pack({ ended, left })
end)
