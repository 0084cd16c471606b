-- The next fence for a lock, above every one that any lock ever had, so that forgotten locks never repeat one.
UPDATE counters SET value = value + 1 WHERE name = 'lock_fence' RETURNING value
