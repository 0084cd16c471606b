-- Wake those that wait for the ends of events.
-- Takes: the channels of their nodes
register('tell_ends', WRITES, function(tx, asked)
  for _, channel in ipairs(asked) do
    tx.woken[channel] = true
  end
  flush(tx)
  return 0
end)
