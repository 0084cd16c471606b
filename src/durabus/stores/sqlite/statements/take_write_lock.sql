-- Changes nothing, but takes SQLite's write lock, so that a caller's transaction reads what it is about to extend.
UPDATE counters SET value = value WHERE name = 'lock_fence'
