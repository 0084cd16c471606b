-- Return how far a reader has read.
-- Takes: name
register('read_position', READS, function(tx, asked)
  return redis.call('HGET', tx[POSITIONS], asked[1]) or ''
end)
