-- Frees the lock that came with the claim on a handler, unless somebody took it since.
-- The row goes: fences are counted for all locks together, so nothing is forgotten with it.
DELETE FROM locks WHERE key = ? AND token = ?
