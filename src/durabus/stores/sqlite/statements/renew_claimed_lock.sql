-- Extends the lock that came with the claim on a handler, unless somebody took it since.
UPDATE locks SET expires_at = ? WHERE key = ? AND token = ?
