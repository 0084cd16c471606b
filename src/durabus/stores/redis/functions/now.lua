-- Return the present time by the store's clock.
register('now', READS, function(tx)
  return string.format('%.17g', tx.now)
end)
