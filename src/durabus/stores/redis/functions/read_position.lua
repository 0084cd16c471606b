-- How far a reader has come.
-- asks: name
register('read_position', READS, function(tx, asked)
  return redis.call('HGET', tx[POSITIONS], asked[1]) or ''
end)
