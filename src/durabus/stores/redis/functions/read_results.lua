-- Return the handlers of events.
-- Takes: ids. Returns: the handlers of each, or nothing
register('read_results', READS, function(tx, asked)
  local found = get_many(tx[RESULTS], asked)
  for n = 1, #asked do
    found[n] = found[n] or ''
  end
  return found
end)
