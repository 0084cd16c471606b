-- Return the archives of the log.
-- Returns: 1 if any entry was ever trimmed, else 0; then name and position of each archive
register('read_archives', READS, function(tx)
  local kept, answer = 0, { 0 }
  for _, count in ipairs(redis.call('HVALS', tx[LOG_BLOCKS])) do
    kept = kept + tonumber(count)
  end
  if kept < tx.position then
    answer[1] = 1
  end
  for name, position in pairs(archives.all(tx)) do
    answer[#answer + 1], answer[#answer + 2] = name, position
  end
  return answer
end)
