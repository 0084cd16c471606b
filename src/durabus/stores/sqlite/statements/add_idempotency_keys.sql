-- As add_event_ids.sql, for the events that carry a key. Relies on the primary key of idempotency_keys.
INSERT INTO idempotency_keys (bus, idempotency_key, id)
SELECT bus, idempotency_key, id FROM events
WHERE id BETWEEN :first AND :last AND idempotency_key IS NOT NULL ORDER BY id
ON CONFLICT DO NOTHING
