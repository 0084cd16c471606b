-- Return the position of the newest entry.
register('log_head', READS, function(tx)
  local newest = redis.call('XREVRANGE', tx[LOG], '+', '-', 'COUNT', 1)[1]
  return newest and string.match(newest[1], '^%d+') or ''
end)
