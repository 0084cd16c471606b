-- As old_dead_letters.sql, for one bus. Walks dead_letters_bus.
SELECT id, event_id, bus, idempotency_key FROM dead_letters
WHERE bus = :bus AND created_at <= :until ORDER BY created_at, id LIMIT :limit
