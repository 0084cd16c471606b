-- Which event a key of a bus stands for. Relies on the primary key of idempotency_keys.
SELECT id FROM idempotency_keys WHERE bus = ? AND idempotency_key = ?
