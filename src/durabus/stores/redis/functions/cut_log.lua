-- Divide the entries between two positions into pieces of equal size. The counts of whole blocks are added up, so a
-- call reads the entries of only one block for each piece. Relies on log_blocks.
-- Takes: after, until, rows, limit. Returns: whether this log has these positions, whether to continue after the last
-- end, the ends
local function numbers_of(blocks)
  local numbers, counts = {}, {}
  for n = 1, #blocks, 2 do
    numbers[#numbers + 1] = tonumber(blocks[n])
    counts[tonumber(blocks[n])] = tonumber(blocks[n + 1])
  end
  table.sort(numbers)
  return numbers, counts
end

register('cut_log', READS, function(tx, asked)
  local after, last, rows, limit = unpack(asked)
  if after > tx.position or last > tx.position then
    return { 0, 0 }
  end
  local numbers, counts = numbers_of(redis.call('HGETALL', tx[LOG_BLOCKS]))
  local answer, left, at = { 1, 0 }, rows, after
  for _, block in ipairs(numbers) do
    local first, final = block * BLOCK, math.min(block * BLOCK + BLOCK - 1, last)
    local whole = at < first and final == first + BLOCK - 1 and counts[block] < left
    if whole then
      left, at = left - counts[block], final
    end
    while not whole and at < final do
      local found = log.read(tx, math.max(at, first - 1), math.min(left, BLOCK), final)
      left = left - #found
      at = left == 0 and tonumber(found[#found][1]) or final
      if left == 0 then
        answer[#answer + 1], left = found[#found][1], rows
        if #answer - 2 == limit then
          answer[2] = 1
          return answer
        end
      end
    end
  end
  if left < rows then
    local rest = redis.call('XREVRANGE', tx[LOG], string.format('%d-0', last), '-', 'COUNT', 1)[1]
    answer[#answer + 1] = string.match(rest[1], '^%d+')
  end
  return answer
end)
