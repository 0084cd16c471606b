-- The idempotency key may be used again.
DELETE FROM idempotency_keys WHERE bus = ? AND idempotency_key = ? AND id = ?
