-- Takes back what add_idempotency_keys.sql wrote for an id range, and nothing that was there before.
DELETE FROM idempotency_keys
WHERE id BETWEEN :first AND :last
  AND (bus, idempotency_key) IN (SELECT bus, idempotency_key FROM events WHERE id BETWEEN :first AND :last)
