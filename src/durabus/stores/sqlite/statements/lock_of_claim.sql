-- The lock that came with a claim, and whose claim it is. Relies on the primary key of events.
SELECT lock_key, bus FROM events WHERE id = ? AND lock_key IS NOT NULL
