-- Extends the lock that came with a claim, unless somebody took it since.
UPDATE locks SET expires_at = ? WHERE key = ? AND token = ?
