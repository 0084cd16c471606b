-- Forgets some locks that nobody has held for long. Relies on locks_expires.
DELETE FROM locks WHERE key IN (SELECT key FROM locks WHERE expires_at < :before ORDER BY expires_at LIMIT 10)
