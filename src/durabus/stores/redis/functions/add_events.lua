-- Store events, all or none, with their PUBLISHED entries. For an event whose event_id, or key on the same bus, is
-- known, the stored event is returned instead. Relies on ids and idempotency_keys.
-- Takes: delays and ordering keys, or false if there are none; then one record of data for each event
register('add_events', WRITES, function(tx, asked, args)
  local blobs = {}
  for n = 3, #args do
    blobs[n - 2] = args[n]
  end
  local ids, known = adding.add(tx, blobs, asked[1], asked[2])
  flush(tx)
  return states.answer(tx, known, { cmsgpack.pack({ tx.now, ids }) })
end)
