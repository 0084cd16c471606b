-- Return held, unexpired locks in order of key. Relies on lock_order; looks at a limited number in one call.
-- Takes: after, limit. Returns: the key to continue after, then the locks
local LOCKS_AT_ONCE = 1000

register('list_locks', READS, function(tx, asked)
  local after, limit = asked[1], asked[2]
  local from = after == '' and '-' or '(' .. after
  local keys = redis.call('ZRANGEBYLEX', tx[LOCK_ORDER], from, '+', 'LIMIT', 0, LOCKS_AT_ONCE)
  local answer = { #keys == LOCKS_AT_ONCE and keys[#keys] or '' }
  for n, blob in ipairs(get_many(tx[LOCKS], keys)) do
    local lock = blob and cmsgpack.unpack(blob)
    if #answer > limit then
      break
    end
    if lock and lock[L_TOKEN] and lock[L_EXPIRES] > tx.now then
      answer[#answer + 1] = blob
    end
  end
  return answer
end)
