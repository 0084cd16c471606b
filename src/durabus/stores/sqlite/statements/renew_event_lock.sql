-- Extends the lock that came with claims, unless somebody took it since, or another of its claims lasts longer.
UPDATE locks SET expires_at = max(expires_at, ?) WHERE key = ? AND token = ?
